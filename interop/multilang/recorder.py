"""A worker on amazon_kclpy that writes each record down before it checkpoints: one line, appended whole."""

import base64
import os

from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor


class Recorder(processor.RecordProcessorBase):
    def initialize(self, initialize_input):
        self.shard = initialize_input.shard_id
        self.note("initialize", initialize_input.sequence_number)

    def note(self, what, *words):
        line = " ".join([self.shard, what, *map(str, words)]) + "\n"
        out = os.open(os.environ["RECORDS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(out, line.encode())
        os.close(out)

    def process_records(self, process_records_input):
        print("a print between two messages")
        for record in process_records_input.records:
            data = record.binary_data.decode()
            self.note("record", record.partition_key, data, record.sequence_number, record.sub_sequence_number)
            if data == os.environ.get("POISON") and not os.path.exists(os.environ["RECORDS"] + ".died"):
                open(os.environ["RECORDS"] + ".died", "w").close()
                os._exit(3)
        process_records_input.checkpointer.checkpoint()

    def lease_lost(self, lease_lost_input):
        self.note("leaseLost")

    def shard_ended(self, shard_ended_input):
        self.note("shardEnded")
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        self.note("shutdownRequested")
        shutdown_requested_input.checkpointer.checkpoint()


if __name__ == "__main__":
    kcl.KCLProcess(Recorder()).run()
