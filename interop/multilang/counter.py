"""A worker on amazon_kclpy that counts its records and checkpoints after each batch."""

import os
import time

from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor


class Counter(processor.RecordProcessorBase):
    def initialize(self, initialize_input):
        self.count = 0
        self.path = os.path.join(os.environ["COUNTS"], initialize_input.shard_id)
        self.note()

    def note(self):
        with open(self.path + ".new", "w") as out:
            out.write(f"{self.count} {time.time()}")
        os.replace(self.path + ".new", self.path)

    def process_records(self, process_records_input):
        self.count += len(process_records_input.records)
        self.note()
        process_records_input.checkpointer.checkpoint()

    def lease_lost(self, lease_lost_input):
        pass

    def shard_ended(self, shard_ended_input):
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        shutdown_requested_input.checkpointer.checkpoint()


if __name__ == "__main__":
    kcl.KCLProcess(Counter()).run()
