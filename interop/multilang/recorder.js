// A worker on aws-kcl that writes each record down before it checkpoints: one line, appended whole.
'use strict';

const fs = require('fs');
const kcl = require('aws-kcl');

let shard;

function note(...words) {
  fs.appendFileSync(process.env.RECORDS, [shard, ...words].join(' ') + '\n');
}

kcl({
  initialize(input, done) {
    shard = input.shardId;
    note('initialize', input.sequenceNumber);
    done();
  },

  processRecords(input, done) {
    console.log('a print between two messages');
    let last;
    for (const record of input.records) {
      const data = Buffer.from(record.data, 'base64').toString();
      note('record', record.partitionKey, data, record.sequenceNumber, record.subSequenceNumber);
      if (data === process.env.POISON && !fs.existsSync(process.env.RECORDS + '.died')) {
        fs.writeFileSync(process.env.RECORDS + '.died', '');
        process.exit(3);
      }
      last = record.sequenceNumber;
    }
    input.checkpointer.checkpoint(last, () => done());
  },

  leaseLost(input, done) {
    note('leaseLost');
    done();
  },

  shardEnded(input, done) {
    note('shardEnded');
    input.checkpointer.checkpoint(() => done());
  },

  shutdownRequested(input, done) {
    note('shutdownRequested');
    input.checkpointer.checkpoint(() => done());
  },
}).run();
