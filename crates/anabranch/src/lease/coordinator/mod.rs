//! The coordinator: which shards this worker reads.
//!
//! ```text
//!            ┌─ heart ─► the worker's row (or each lease's, in KCL's layout)
//! Coordinator┼─ run ───► look ─ View ─ plan ─ LeaseMove ─ act ─► Held ─ ready ─► Grip
//!            │             ▲                                                      │
//!            │             └──────── give: pass, release ◄── finish ──────────────┘
//!            └─ audit ─► holes, finished rows, gone workers, re-created streams
//! ```

mod settings;
mod suspects;
mod missing;
mod learned;
mod unreadable;
mod tools;
mod start;
mod survey;
mod open;
mod first_sync;
mod part;
mod crew;
mod member;
mod holdings;
mod heart;
mod gate_attempt;
mod ready;
mod look;
mod act;
mod give;
mod pace;
mod run;
mod audit;
mod cleanup;

pub use settings::{Settings, StreamSettings};
pub use start::StartError;
pub(crate) use tools::Tools;

use super::grip::DrainReason;
use super::{Grip, LeaseStore};
use crate::clock::{Chance, Clock};
use crate::event::{Events, LeaseEvent};
use crate::stream::api::StreamApi;
use crate::stream::shard_lists::ShardLists;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Layout, LeaseKey, Surveyed, WorkerId};
use crew::{Crew, ReadStream};
use holdings::Holdings;
use member::Member;
use std::future::Future;
use std::sync::Arc;
use suspects::Suspects;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// One worker of an application. Dropped, it stops at once, as in a crash.
#[derive(Debug)]
pub struct Coordinator<S: LeaseStore, A: StreamApi> {
    /// What the tasks share.
    crew: Arc<Crew<S, A>>,
    /// The task that beats.
    heart: JoinSet<()>,
    /// The tasks that look and audit.
    tasks: JoinSet<()>,
}

/// A stream that is ready to be read.
#[derive(Debug)]
pub(crate) struct Opened(ReadStream);

/// How a stop ended.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Stopped {
    /// Every lease was passed on or given back, and the worker has left.
    Left,
    /// Every lease was given back, but the store did not take the farewell. Nobody waits for this
    /// worker's leases; others remove its row once it has been silent for a lease time.
    ///
    /// In KCL's layout: this worker is still named on leases that it asked for. One that is passed to
    /// it is taken by others after its lease time.
    NotLeft,
    /// These leases could not be given back in time: handlers still run, or the store did not
    /// answer. The worker has not left, so nobody takes them before the lease time is over. Exit
    /// with an error.
    Stuck {
        /// Which.
        leases: Vec<LeaseKey>,
    },
}

impl<S: LeaseStore, A: StreamApi> Coordinator<S, A> {
    /// Checks the store and the streams, makes the first rows, joins the fleet and begins to take
    /// leases. Each grip that arrives is the right to read one shard.
    ///
    /// What may pass by itself is waited for; an error needs somebody's help.
    pub async fn start(
        store: Arc<S>,
        api: Arc<A>,
        settings: Settings,
        clock: Clock,
        chance: Chance,
        events: Events,
    ) -> Result<(Self, mpsc::Receiver<Grip<S, A>>), StartError> {
        let (grips, receiver) = mpsc::channel(settings.grips_waiting.max(1));
        let streams = settings.streams.clone();
        let tools = Arc::new(Tools {
            store,
            api,
            settings,
            clock,
            chance,
            events,
            summaries: Arc::default(),
            shard_lists: ShardLists::default(),
            suspects: Suspects::default(),
            unreadable: unreadable::Reported::default(),
        });
        start::prepare(&tools).await?;
        let (survey, since_ms) = survey::survey(&tools).await?;
        let mut opened: Vec<ReadStream> = Vec::new();
        for stream in streams {
            let stream = open::open(&tools, stream).await?;
            if opened.iter().any(|other| other.arn == stream.arn) {
                return Err(StartError::TwiceTheStream { stream: stream.names.given });
            }
            opened.push(stream);
        }
        let mut reads: Vec<StreamName> =
            opened.iter().map(|stream| stream.settings.name.clone()).collect();
        reads.sort_unstable();
        let member = Member::join(&tools, reads).await?;
        tools.tell(LeaseEvent::Joined { worker: member.id.clone() });
        let holdings = Holdings::new(Arc::new(member));
        let crew = Arc::new(Crew::new(tools, holdings, opened, grips));
        let (mut heart, mut tasks) = (JoinSet::new(), JoinSet::new());
        heart.spawn(crew.parts.run(heart::run(crew.clone())));
        let surveyed = Surveyed::new(&survey, since_ms);
        tasks.spawn(crew.parts.run(run::run(crew.clone(), surveyed)));
        tasks.spawn(crew.parts.run(audit::run(crew.clone(), survey)));
        Ok((Self { crew, heart, tasks }, receiver))
    }

    /// The worker's id for its present join.
    pub fn worker(&self) -> WorkerId {
        self.crew.holdings.member().id.clone()
    }

    /// The leases that this worker holds, by key.
    pub fn leases(&self) -> Vec<LeaseKey> {
        self.crew.holdings.keys()
    }

    /// Reads one more stream. All workers of an application should read the same streams: what one
    /// of them doesn't read, the others level out late.
    pub async fn add_stream(&self, stream: StreamSettings) -> Result<(), StartError> {
        let opened = self.open_stream(stream).await?;
        self.read_stream(opened)
    }

    /// Makes a stream ready to be read. That may take as long as somebody changes the stream, so it
    /// borrows nothing: whoever asked can do other things meanwhile.
    pub(crate) fn open_stream(
        &self,
        stream: StreamSettings,
    ) -> impl Future<Output = Result<Opened, StartError>> + Send + use<S, A> {
        let crew = self.crew.clone();
        async move {
            if crew.key_of(&stream.name).is_some() {
                return Err(StartError::TwiceTheStream { stream: stream.name });
            }
            Ok(Opened(open::open(&crew.tools, stream).await?))
        }
    }

    /// Reads a stream that is ready.
    pub(crate) fn read_stream(&self, Opened(stream): Opened) -> Result<(), StartError> {
        if self.crew.key_of(&StreamName::from(stream.arn.as_str())).is_some() {
            return Err(StartError::TwiceTheStream { stream: stream.names.given });
        }
        self.crew.add_stream(stream);
        self.crew.say_what_is_read();
        Ok(())
    }

    /// Reads a stream no longer: its shards are drained for up to `grace_ms`, and given back.
    /// Returns the leases that were not given back in time.
    pub async fn remove_stream(&self, stream: &StreamName, grace_ms: u64) -> Vec<LeaseKey> {
        let key = self.crew.key_of(stream).or_else(|| self.crew.missing.key_of(stream));
        let stream = &key.unwrap_or_else(|| stream.clone());
        self.crew.remove_stream(stream);
        self.crew.say_what_is_read();
        let removed = DrainReason::StreamRemoved;
        self.crew.drain(grace_ms, &removed, |key| key.stream == *stream).await
    }

    /// Waits until no stream is left to read because the last one was deleted, or deleted and
    /// created again, or because the table is now worked on by a fleet of KCL 3.x. The worker holds nothing then, and is to be stopped.
    pub async fn until_refused(&self) -> StartError {
        self.crew.until_refused().await
    }

    /// Waits until one of the coordinator's tasks has panicked: it then works no longer, and is to be
    /// stopped.
    pub async fn until_broken(&self) {
        self.crew.parts.until_broken().await;
    }

    /// Drains every shard for up to `grace_ms`, gives the leases back and leaves. The last writes
    /// have the time of one call on top, all of them together.
    pub async fn stop(mut self, grace_ms: u64) -> Stopped {
        let crew = &self.crew;
        crew.begin_to_stop();
        let over_ms = crew.over_ms(crew.now_ms().saturating_add(grace_ms));
        let native = crew.tools.store.layout() == Layout::Native;
        let member = crew.holdings.member();
        // If the store does not take the word, the leases are given back all the same. What is cut
        // off here may still land, so nothing but the farewell follows it, which then fails.
        let retire = async {
            if native {
                tokio::select! {
                    biased;
                    _ = member.retire(&crew.tools) => {}
                    () = crew.tools.clock.sleep_until(over_ms) => {}
                }
            }
        };
        let drain = crew.drain(grace_ms, &DrainReason::Stopping, |_| true);
        let leases = tokio::select! {
            biased;
            ((), leases) = async { tokio::join!(retire, drain) } => leases,
            () = give::take_back_instead(crew) => unreachable!("it gives back for ever"),
        };
        self.tasks.shutdown().await;
        if !leases.is_empty() {
            return Stopped::Stuck { leases };
        }
        if !native {
            let names_stay = !crew.holdings.asked().is_empty();
            return if names_stay { Stopped::NotLeft } else { Stopped::Left };
        }
        // It may have joined again meanwhile.
        let member = crew.holdings.member();
        let left = tokio::select! {
            biased;
            left = member.leave(&crew.tools, &mut self.heart) => left,
            () = crew.tools.clock.sleep_until(over_ms) => false,
        };
        if left { Stopped::Left } else { Stopped::NotLeft }
    }
}
