#!/usr/bin/env bash
# A round trip through version 1 of the AWS CLI at its default settings.
#
# One function a promise. Prints `ok NAME` or `not ok NAME: WHY`. AWS is the CLI to use, `aws` by
# default; the endpoint comes from AWS_ENDPOINT_URL. A call of the CLI costs about half a second, so
# the checks share one stream and run in order. Data goes in raw and comes out in base64.
set -u -o pipefail

AWS=${AWS:-aws}
STREAM="cli-$(date +%s)-$$"
MIDDLE=170141183460469231731687303715884105728
failures=0
why=""

# ---- helpers of the checks ------------------------------------------------------------------

# A call that must succeed, with plain text as its answer; its complaint becomes the reason.
kinesis() { run kinesis "$@"; }

run() {
  timeout 20 "$AWS" --output text "$@" || { echo "by aws $1 $2" >&2 && return 1; }
}

expect() {
  [ "$1" = "$2" ] && return
  echo "expected '$1', got '$2'" >&2
  return 1
}

await_active() {
  local status deadline=$((SECONDS + 15))
  while status=$(kinesis describe-stream-summary --stream-name "$STREAM" \
    --query StreamDescriptionSummary.StreamStatus) && [ "$status" != ACTIVE ]; do
    [ $SECONDS -lt $deadline ] || { echo "the stream stays $status" >&2; return 1; }
  done
  [ "$status" = ACTIVE ]
}

# The decoded data of a shard's first page of records, one a line.
data_of() {
  local at
  at=$(kinesis get-shard-iterator --stream-name "$STREAM" --shard-id "$1" \
    --shard-iterator-type TRIM_HORIZON --query ShardIterator) || return
  kinesis get-records --shard-iterator "$at" --query 'Records[].[Data]' |
    while read -r line; do base64 -d <<<"$line" && echo; done
}

shard() { printf 'shardId-%012d' "$1"; }

# ---- checks ---------------------------------------------------------------------------------

# A stream is made, and the CLI's own waiter sees it.
create_and_wait() {
  kinesis create-stream --stream-name "$STREAM" --shard-count 2 || return
  # The waiter looks every 10 s; this way its first look is enough.
  await_active || return
  kinesis wait stream-exists --stream-name "$STREAM"
}

# A record goes in by put-record, and comes back byte for byte.
put_record() {
  local placed
  placed=$(kinesis put-record --stream-name "$STREAM" --partition-key k --explicit-hash-key 0 \
    --data one --query ShardId) || return
  expect "$(shard 0)" "$placed" || return
  expect one "$(data_of "$(shard 0)")"
}

# A batch goes in by put-records, each record to the shard of its hash.
put_records() {
  local rows placed
  rows='[{"PartitionKey":"k","ExplicitHashKey":"0","Data":"two"},
         {"PartitionKey":"k","ExplicitHashKey":"'$MIDDLE'","Data":"three"}]'
  placed=$(kinesis put-records --stream-name "$STREAM" --records "$rows" \
    --query '[FailedRecordCount, Records[0].ShardId, Records[1].ShardId]') || return
  expect "0 $(shard 0) $(shard 1)" "$(echo $placed)" || return
  expect "one two" "$(echo $(data_of "$(shard 0)"))"
}

# A split and a merge give children with their parents.
split_and_merge() {
  kinesis split-shard --stream-name "$STREAM" --shard-to-split "$(shard 0)" \
    --new-starting-hash-key 1000 || return
  await_active || return
  kinesis merge-shards --stream-name "$STREAM" --shard-to-merge "$(shard 3)" \
    --adjacent-shard-to-merge "$(shard 1)" || return
  await_active || return
  local parents
  parents=$(kinesis list-shards --stream-name "$STREAM" \
    --query 'Shards[].[ShardId, ParentShardId, AdjacentParentShardId]') || return
  expect "$(shard 0) None None $(shard 1) None None $(shard 2) $(shard 0) None \
$(shard 3) $(shard 0) None $(shard 4) $(shard 3) $(shard 1)" "$(echo $parents)"
}

# The last page of a closed shard names its children and has no next iterator.
end_of_a_shard() {
  local at end
  at=$(kinesis get-shard-iterator --stream-name "$STREAM" --shard-id "$(shard 0)" \
    --shard-iterator-type TRIM_HORIZON --query ShardIterator) || return
  end=$(kinesis get-records --shard-iterator "$at" \
    --query '[length(Records), NextShardIterator, ChildShards[0].ShardId, ChildShards[1].ShardId]') || return
  expect "2 None $(shard 2) $(shard 3)" "$(echo $end)"
}

# describe-stream pages through all shards.
describe() {
  local found
  found=$(kinesis describe-stream --stream-name "$STREAM" --page-size 2 \
    --query 'StreamDescription.Shards[].ShardId') || return
  expect "$(echo $(for i in 0 1 2 3 4; do shard $i; echo; done))" "$(echo $found)"
}

# A refusal has its type, and the CLI's exit code for a service error.
typed_error() {
  local complaint
  complaint=$(timeout 20 "$AWS" kinesis get-records --shard-iterator garbage 2>&1)
  expect 255 $? || return
  case $complaint in
    *"(InvalidArgumentException) when calling the GetRecords operation: "?*) ;;
    *) echo "$complaint" >&2 && return 1 ;;
  esac
}

# DynamoDB answers on the same endpoint.
dynamodb_list_tables() {
  local tables
  tables=$(run dynamodb list-tables --query 'length(TableNames)') || return
  expect 0 "$tables"
}

# A stream is deleted, and the CLI's own waiter sees it go.
delete_and_wait() {
  kinesis delete-stream --stream-name "$STREAM" || return
  local left deadline=$((SECONDS + 15))
  while left=$(kinesis list-streams --query 'length(StreamNames)') && [ "$left" != 0 ]; do
    [ $SECONDS -lt $deadline ] || { echo "the stream stays" >&2; return 1; }
  done
  kinesis wait stream-not-exists --stream-name "$STREAM"
}

# ---- main -----------------------------------------------------------------------------------

for check in create_and_wait put_record put_records split_and_merge end_of_a_shard describe \
  typed_error dynamodb_list_tables delete_and_wait; do
  if why=$("$check" 2>&1 >/dev/null); then
    echo "ok $check"
  else
    failures=$((failures + 1))
    echo "not ok $check: $(tr -s '[:space:]' ' ' <<<"$why" | cut -c1-400)"
  fi
done
[ $failures -eq 0 ]
