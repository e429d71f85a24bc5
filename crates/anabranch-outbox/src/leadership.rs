//! Leadership: proof that a relay still holds the lock, checked before each put.
//!
//! The lock ends with the session, and a relay that was frozen or cut off is not notified. The
//! server is therefore configured to end a silent session after the *takeover* timeout, and no
//! sooner. A relay sends only if the last answer was **requested** less than four fifths of that
//! timeout ago. A successor that takes over after a silence thus finds that its predecessor has
//! stopped.
//!
//! ```text
//! requested     answered       puts refused      the server may end the session
//!   |-------------|----------------|------------------------|
//!   0                         0.8 takeover              takeover
//! ```

use crate::database::{DatabaseSession, Statement, arguments};
use crate::error::RelayError;
use anabranch::clock::Clock;
use anabranch::stream::api::{
    FanOutConsumer, FetchedRecords, Placement, PutEntry, PutEntryResult, ReadFrom, ShardFilter,
    ShardIterator, ShardList, StreamApi, StreamError, StreamSummary, Subscription,
};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::retry::Fault;
use anabranch_model::sequence::SequenceNumber;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Shortest takeover timeout. Below it TCP keep-alives, which have a resolution of seconds, could
/// end a session first.
pub(crate) const TAKEOVER_MIN_MS: u64 = 1_000;

/// Sets the server's timeouts so that it ends a silent session after this many milliseconds, and
/// not before. A frozen process keeps its TCP connection alive. The idle session timeout covers it,
/// on servers that support one (PostgreSQL 14 and later).
const SILENCE: &str = "\
SELECT set_config('tcp_user_timeout', $1::bigint::text, false),
  set_config('tcp_keepalives_idle', greatest(1, $1::bigint / 2000)::text, false),
  set_config('tcp_keepalives_interval', greatest(1, $1::bigint / 5000)::text, false),
  set_config('tcp_keepalives_count', '3', false),
  CASE WHEN current_setting('server_version_num')::int >= 140000
    THEN set_config('idle_session_timeout', $1::bigint::text, false) END";

/// Leadership of a relay. Clones share its state.
#[derive(Debug, Clone)]
pub(crate) struct Leadership {
    /// Clock that includes system suspend.
    clock: Clock,
    /// Time for which the server keeps a silent session.
    takeover_ms: u64,
    /// Request time of the last answered statement.
    proved_ms: Arc<AtomicU64>,
}

impl Leadership {
    pub(crate) fn new(clock: Clock, takeover_ms: u64) -> Self {
        Self { clock, takeover_ms, proved_ms: Arc::default() }
    }

    /// Returns the current time, to be passed to [`Leadership::note_answer`] with the answer.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Records that the session answered a statement sent at `asked_ms`.
    pub(crate) fn note_answer(&self, asked_ms: u64) {
        self.proved_ms.fetch_max(asked_ms, Ordering::Relaxed);
    }

    /// Returns true if no other session can hold the lock.
    fn holds(&self) -> bool {
        let silent_ms = self.now_ms().saturating_sub(self.proved_ms.load(Ordering::Relaxed));
        silent_ms < self.takeover_ms / 5 * 4
    }

    /// Returns the time of the next ping.
    pub(crate) fn ping_at_ms(&self) -> u64 {
        self.proved_ms.load(Ordering::Relaxed).saturating_add(self.takeover_ms / 5)
    }

    /// Waits until the next ping is due.
    pub(crate) async fn wait_until_ping(&self) {
        self.clock.sleep_until(self.ping_at_ms()).await;
    }

    /// Configures the server to end this session once it is silent for the takeover timeout.
    pub(crate) async fn bound_session(&self, link: &mut DatabaseSession) -> Result<(), RelayError> {
        let takeover_ms = i64::try_from(self.takeover_ms).unwrap_or(i64::MAX);
        let arguments = arguments![takeover_ms];
        link.row(Statement { sql: SILENCE, arguments, doing: "set the timeouts of a session" })
            .await
            .map(drop)
    }
}

/// A stream that accepts puts only while the relay leads.
#[derive(Debug, Clone)]
pub(crate) struct LeaderStream<A> {
    api: A,
    lead: Leadership,
    /// Reason for which the stream refuses the relay, if it does.
    refusal: LastRefusal,
}

/// Reason for which the stream refuses the relay, as of the last answer to a put. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastRefusal(Arc<Mutex<Option<String>>>);

impl LastRefusal {
    fn note<T>(&self, reply: &Result<T, StreamError>) {
        let why = match reply {
            Ok(_) => None,
            Err(error) if error.fault.refuses_caller() => Some(error.to_string()),
            // Other errors do not show if the stream would have refused the relay.
            Err(_) => return,
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Returns the reason, if the stream refuses the relay.
    pub(crate) fn why(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<A> LeaderStream<A> {
    pub(crate) fn new(api: A, lead: Leadership) -> Self {
        Self { api, lead, refusal: LastRefusal::default() }
    }

    /// Returns a handle to the current refusal reason.
    pub(crate) fn refusal(&self) -> LastRefusal {
        self.refusal.clone()
    }

    /// Refuses a put that could follow those of another relay. The put may be retried, because the
    /// session may be slow and not lost.
    fn check_leadership(
        &self,
        operation: &'static str,
        stream: &StreamName,
    ) -> Result<(), StreamError> {
        if self.lead.holds() {
            return Ok(());
        }
        let detail = "the database has not answered for too long, so another relay may have taken \
                      over";
        Err(StreamError {
            fault: Fault::NotSent,
            operation,
            target: stream.to_string(),
            detail: detail.to_owned(),
            source: None,
        })
    }
}

impl<A: StreamApi> StreamApi for LeaderStream<A> {
    async fn put_records(
        &self,
        stream: &StreamName,
        entries: &[PutEntry],
    ) -> Result<Vec<PutEntryResult>, StreamError> {
        self.check_leadership("PutRecords", stream)?;
        let reply = self.api.put_records(stream, entries).await;
        self.refusal.note(&reply);
        reply
    }

    async fn put_record(
        &self,
        stream: &StreamName,
        entry: &PutEntry,
        after: Option<SequenceNumber>,
    ) -> Result<Placement, StreamError> {
        self.check_leadership("PutRecord", stream)?;
        let reply = self.api.put_record(stream, entry, after).await;
        self.refusal.note(&reply);
        reply
    }

    async fn describe(&self, stream: &StreamName) -> Result<StreamSummary, StreamError> {
        self.api.describe(stream).await
    }

    async fn list_shards(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
    ) -> Result<ShardList, StreamError> {
        self.api.list_shards(stream, filter).await
    }

    async fn iterator(
        &self,
        stream: &StreamName,
        shard: &ShardId,
        at: ReadFrom,
    ) -> Result<ShardIterator, StreamError> {
        self.api.iterator(stream, shard, at).await
    }

    async fn records(
        &self,
        stream: &StreamName,
        iterator: &ShardIterator,
        limit: u32,
    ) -> Result<FetchedRecords, StreamError> {
        self.api.records(stream, iterator, limit).await
    }

    async fn register_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> Result<FanOutConsumer, StreamError> {
        self.api.register_consumer(stream, name).await
    }

    async fn describe_consumer(
        &self,
        stream: &StreamSummary,
        name: &str,
    ) -> Result<FanOutConsumer, StreamError> {
        self.api.describe_consumer(stream, name).await
    }

    async fn deregister_consumer(&self, consumer: &FanOutConsumer) -> Result<(), StreamError> {
        self.api.deregister_consumer(consumer).await
    }

    async fn subscribe(
        &self,
        consumer: &FanOutConsumer,
        shard: &ShardId,
        at: ReadFrom,
    ) -> Result<Subscription, StreamError> {
        self.api.subscribe(consumer, shard, at).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lead_lasts_from_the_question_and_not_from_its_answer() {
        let lead = Leadership::new(Clock::of_runtime(), 10_000);
        lead.clock.sleep(50_000).await;
        assert!(!lead.holds(), "nothing was answered yet");
        let asked_ms = lead.now_ms();
        lead.clock.sleep(3_000).await;
        lead.note_answer(asked_ms);
        for (wait_ms, holds) in [(0, true), (4_999, true), (1, false), (60_000, false)] {
            lead.clock.sleep(wait_ms).await;
            assert_eq!(lead.holds(), holds, "{} ms after the question", lead.now_ms() - asked_ms);
        }
        lead.note_answer(lead.now_ms());
        lead.note_answer(asked_ms);
        assert!(lead.holds(), "an old answer takes nothing away");
    }
}
