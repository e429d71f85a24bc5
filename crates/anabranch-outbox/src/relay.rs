//! Relay main loop: runs one leader term after another until it is stopped.

use crate::config::Relay;
use crate::database::DatabaseSession;
use crate::error::RelayError;
use crate::leader_term::LeaderTerm;
use crate::leadership::{LeaderStream, Leadership};
use crate::listen::RowListener;
use crate::lock;
use crate::remove::RowRemover;
use crate::schema;
use crate::schema::TableSchema;
use crate::session;
use anabranch::event::RelayEvent;
use anabranch::producer::{KeyOrder, OnFailure, Producer};
use anabranch::stream::api::StreamApi;
use anabranch_model::retry::Backoff;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Pauses between terms: 500 ms, growing to 15 s.
const PAUSES: Backoff = Backoff::new(500, 15_000);

impl Relay {
    /// Runs until `stop` is cancelled. Several relays may run at a time: one relays, and another
    /// takes over when it ends.
    ///
    /// Returns an error for a problem found at startup: an unreachable database, a table that can't
    /// be relayed or a missing stream. Later problems are retried and reported as events. While the
    /// stream refuses the caller (permissions, credentials, encryption key), rows wait in the table
    /// and are sent once the refusal ends. After a stop, [`RelayError::Left`] reports rows that are
    /// in the stream and still in the table.
    pub async fn run<A>(&self, api: &A, stop: CancellationToken) -> Result<(), RelayError>
    where
        A: StreamApi + Clone,
    {
        session::check(&self.database).await?;
        // Check the database and the stream now, so that a mistake is reported at once and not
        // after a takeover.
        self.open().await?.0.close().await;
        let nobody = Leadership::new(self.clock.clone(), self.takeover_ms);
        drop(self.producer(&LeaderStream::new(api.clone(), nobody)).await?);
        let ear = RowListener::open(&self.database, &self.table);
        let mut failures = 0;
        while !stop.is_cancelled() {
            let began_ms = self.clock.now_ms();
            let Err(error) = Box::pin(self.term(api, &ear, &stop)).await else { break };
            if matches!(error, RelayError::Left { .. }) {
                return Err(error);
            }
            // A term that lasted over a minute resets the number of consecutive failures.
            let lasted = self.clock.now_ms().saturating_sub(began_ms) > 60_000;
            failures = if lasted { 1 } else { failures + 1 };
            let mut pause_ms = PAUSES.wait_ms(failures, self.chance.bits());
            if matches!(error, RelayError::Stalled { .. }) {
                // Every standby has tried to take the lock by then.
                pause_ms += 2 * self.lock_ms();
            }
            self.tell(RelayEvent::Interrupted {
                table: self.table.label(),
                error: error.to_string(),
                retry_in: Duration::from_millis(pause_ms),
            });
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = self.clock.sleep(pause_ms) => {}
            }
        }
        Ok(())
    }

    /// Waits for the lock, then relays until it is stopped or fails.
    async fn term<A>(
        &self,
        api: &A,
        ear: &RowListener,
        stop: &CancellationToken,
    ) -> Result<(), RelayError>
    where
        A: StreamApi + Clone,
    {
        let (mut link, shape) = self.open().await?;
        let lead = Leadership::new(self.clock.clone(), self.takeover_ms);
        lead.bound_session(&mut link).await?;
        link.set_leadership(lead.clone());
        let mut told = false;
        while !lock::try_take(&mut link, &self.table).await? {
            if !told {
                told = true;
                self.tell(RelayEvent::StandingBy { table: self.table.label() });
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => {
                    link.close().await;
                    return Ok(());
                }
                () = self.clock.sleep(self.lock_ms()) => {}
            }
        }
        let gate = LeaderStream::new(api.clone(), lead);
        let refusal = gate.refusal();
        let producer = link.while_alive(self.producer(&gate)).await??;
        let remover = link.while_alive(RowRemover::open(&self.database, &self.table)).await??;
        self.tell(RelayEvent::Leading { table: self.table.label() });
        LeaderTerm::new(self, (link, remover), &shape, (producer, refusal)).run(ear, stop).await
    }

    /// Returns the interval between attempts to take the lock. It is short enough that the server
    /// does not consider the session dead.
    fn lock_ms(&self) -> u64 {
        self.poll_ms.min(self.takeover_ms / 5)
    }

    /// Opens a session and reads the table's schema. Returns an error if the table can't be
    /// relayed.
    async fn open(&self) -> Result<(DatabaseSession, TableSchema), RelayError> {
        let mut link = self.database.connect().await?;
        let table = self.table.label();
        let problems = match schema::inspect(&mut link, &self.table).await? {
            Some(shape) => match shape.problems(&self.table) {
                problems if problems.is_empty() => return Ok((link, shape)),
                problems => problems,
            },
            None => vec![crate::error::TableProblem {
                what: "there is no such table".to_owned(),
                way_out: "create it with 'anabranch relay init', or name yours with --table \
                          SCHEMA.NAME"
                    .to_owned(),
            }],
        };
        link.close().await;
        Err(RelayError::Table { table, problems })
    }

    async fn producer<A>(&self, api: &A) -> Result<Producer, RelayError>
    where
        A: StreamApi + Clone,
    {
        let builder =
            self.producer.clone().with_order(KeyOrder::Strict).with_on_failure(OnFailure::StopKey);
        Ok(builder.with_kinesis(api.clone()).start().await?)
    }

    pub(crate) fn tell(&self, event: RelayEvent) {
        self.events.emit(event);
    }
}
