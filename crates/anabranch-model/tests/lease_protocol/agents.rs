//! What two workers and the network between them may do next, and what must always hold.
//!
//! Every step is optional, so a worker that is slow, paused or dead is one that takes none. A read
//! is one step: a reply that takes longer only makes its reader later, never bolder.

use crate::flaw::Flaw;
use crate::rules::{Change, END, Heart, Id, Pulse, Row, Rules};
use crate::world::{Agent, Beat, Call, IDS, LEASE, Listed, Request, Seen, WORKERS, World};
use anabranch_model::lease::Resolution;

/// What ought to be possible.
pub(crate) const GOALS: [&str; 5] = [
    "b delivers what was a's",
    "a delivers what was b's",
    "a delivers under its second id",
    "b goes on after a checkpoint",
    "the shard ends",
];

/// How much of the world is explored.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) leases: usize,
    /// Whether the leases have owners at the start.
    pub(crate) owned: bool,
    pub(crate) ticks: u8,
    /// The highest counter of each worker's heart.
    pub(crate) beats: [u8; WORKERS],
    /// The highest term of a lease.
    pub(crate) terms: u8,
    /// Which workers look at hearts and fence: all from this one on.
    pub(crate) watchers_from: usize,
    /// Whether worker a leaves, crashes and joins again.
    pub(crate) rejoin: bool,
    /// Whether workers ask for leases and pass them.
    pub(crate) hand_over: bool,
    pub(crate) release: bool,
    pub(crate) checkpoints: bool,
    /// Whether requests and replies get lost.
    pub(crate) losses: bool,
    /// Whether a write can land after its sender gave it up.
    pub(crate) late: bool,
    /// Whether a beat can.
    pub(crate) late_beats: bool,
    /// Whether a worker may forget about a write instead of reading back.
    pub(crate) abandon: bool,
}

/// One thing that happens. The first number is the worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Tick,
    Beat(usize),
    BeatArrives(usize),
    BeatReply(usize),
    BeatGivenUp(usize),
    BeatLeftToLandLate(usize),
    BeatReadBack(usize),
    BeatRetry(usize),
    LateBeatLands(usize),
    Look(usize, Id),
    List(usize, usize),
    Send(usize, Request),
    Arrives(usize),
    Reply(usize),
    GivenUp(usize),
    LeftToLandLate(usize),
    ReadBack(usize),
    Abandon(usize),
    LateLands(usize),
    Stop(usize),
    Join(usize),
    DeleteHeart(usize, Id),
}

/// The moves of one exploration.
pub(crate) struct Moves<'a> {
    scope: &'a Scope,
    flaw: Flaw,
    rules: Rules,
}

impl<'a> Moves<'a> {
    pub(crate) fn new(scope: &'a Scope, flaw: Flaw) -> Self {
        Self { scope, flaw, rules: Rules::new(flaw) }
    }

    /// The promises, in any state.
    pub(crate) fn check(&self, world: &World) -> Result<(), String> {
        for lease in 0..self.scope.leases {
            if world.agents.iter().all(|agent| self.may_deliver(agent, lease)) {
                return Err(format!("both workers may deliver lease {lease}"));
            }
            if world.leases[lease].checkpoint < world.acked[lease] {
                return Err(format!("lease {lease} lacks a checkpoint that was acknowledged"));
            }
        }
        Ok(())
    }

    /// Good things that ought to be possible.
    pub(crate) fn goals(&self, world: &World) -> [bool; GOALS.len()] {
        let [a, b] = &world.agents;
        [
            self.may_deliver(b, 0),
            self.may_deliver(a, 1),
            a.id == 1 && self.may_deliver(a, 0),
            self.may_deliver(b, 0) && world.acked[0] > 0,
            world.acked[0] == END,
        ]
    }

    /// A row as a list shows it. Nobody reads the checkpoint there, but for the flaw.
    fn listed(&self, row: Row) -> Listed {
        let reads_it = self.flaw == Flaw::ReadsOnFromTheListedRow;
        let checkpoint = if reads_it { row.checkpoint } else { 0 };
        Listed { owner: row.owner, term: row.term, named: row.named, checkpoint }
    }

    fn may_deliver(&self, agent: &Agent, lease: usize) -> bool {
        let mind = &agent.minds[lease];
        let in_time = agent.age < LEASE || self.flaw == Flaw::RenewsAfterItsExpiry;
        agent.joined && mind.hold.is_some() && !mind.silent && in_time
    }

    /// All that may happen next.
    pub(crate) fn from(&self, world: &World, steps: &mut Vec<Step>) {
        if world.tick < self.scope.ticks {
            steps.push(Step::Tick);
        }
        for (w, agent) in world.agents.iter().enumerate() {
            self.beats(w, agent, steps);
            self.calls(w, agent, steps);
            if agent.joined {
                self.reads(w, agent, world, steps);
                if agent.call == Call::None && agent.age < LEASE {
                    self.sends(w, agent, world, steps);
                }
            }
            if self.scope.rejoin && w == 0 {
                self.comings_and_goings(w, agent, world, steps);
            }
        }
    }

    fn beats(&self, w: usize, agent: &Agent, steps: &mut Vec<Step>) {
        match agent.beat {
            Beat::None => {
                let in_time = agent.age < LEASE || self.flaw.resumes_after_expiry();
                if agent.joined && in_time && agent.counter < self.scope.beats[w] {
                    steps.push(Step::Beat(w));
                }
            }
            Beat::Sent(_) => {
                steps.push(Step::BeatArrives(w));
                if self.scope.losses {
                    steps.push(Step::BeatGivenUp(w));
                }
                if self.scope.late_beats && agent.late_beat.is_none() {
                    steps.push(Step::BeatLeftToLandLate(w));
                }
            }
            Beat::Answered(..) => {
                steps.push(Step::BeatReply(w));
                if self.scope.losses {
                    steps.push(Step::BeatGivenUp(w));
                }
            }
            Beat::Unresolved(_) => steps.extend([Step::BeatReadBack(w), Step::BeatRetry(w)]),
        }
        if agent.late_beat.is_some() {
            steps.push(Step::LateBeatLands(w));
        }
    }

    fn calls(&self, w: usize, agent: &Agent, steps: &mut Vec<Step>) {
        match agent.call {
            Call::None => {}
            Call::Sent(_) => {
                steps.push(Step::Arrives(w));
                if self.scope.losses {
                    steps.push(Step::GivenUp(w));
                }
                if self.scope.late && agent.late.is_none() {
                    steps.push(Step::LeftToLandLate(w));
                }
            }
            Call::Answered(..) => {
                steps.push(Step::Reply(w));
                if self.scope.losses {
                    steps.push(Step::GivenUp(w));
                }
            }
            Call::Unresolved(_) => {
                steps.push(Step::ReadBack(w));
                if self.scope.abandon {
                    steps.push(Step::Abandon(w));
                }
            }
        }
        if agent.late.is_some() {
            steps.push(Step::LateLands(w));
        }
    }

    fn reads(&self, w: usize, agent: &Agent, world: &World, steps: &mut Vec<Step>) {
        for lease in 0..self.scope.leases {
            if agent.minds[lease].listed != Some(self.listed(world.leases[lease])) {
                steps.push(Step::List(w, lease));
            }
        }
        for id in (0..IDS).filter(|_| w >= self.scope.watchers_from) {
            let new = sight(agent.seen[id], world.hearts[id]);
            let known = world.hearts[id] != Heart::Absent || names(agent, id);
            if id != usize::from(agent.id) && known && new != agent.seen[id] {
                steps.push(Step::Look(w, small(id)));
            }
        }
    }

    fn sends(&self, w: usize, agent: &Agent, world: &World, steps: &mut Vec<Step>) {
        for id in (0..IDS).filter(|_| w >= self.scope.watchers_from) {
            if let Seen::Alive(watched, LEASE..) = agent.seen[id] {
                let counter = match world.hearts[id] {
                    Heart::Alive(now) if self.flaw == Flaw::FencesOnANewerCounter => now,
                    _ => watched,
                };
                steps.push(Step::Send(w, Request::Heart(small(id), Pulse::Fence(counter))));
            }
        }
        for lease in 0..self.scope.leases {
            let mut send = |change| steps.push(Step::Send(w, Request::Lease(small(lease), change)));
            self.changes(agent, lease, &mut send);
        }
    }

    fn changes(&self, agent: &Agent, lease: usize, send: &mut impl FnMut(Change)) {
        let (by, mind) = (agent.id, &agent.minds[lease]);
        let may_move = |term| term < self.scope.terms;
        match mind.hold {
            // A late take or pass may have made it mine, too.
            None => {
                let Some(row) = mind.listed else { return };
                let term = row.term;
                if may_move(term) && self.is_free(agent, row.owner) {
                    send(Change::Take { by, term });
                }
                if self.scope.hand_over && row.owner.is_some_and(|owner| owner != by) {
                    match row.named {
                        None => send(Change::Name { by, term }),
                        Some(taker) if taker == by => send(Change::Withdraw { by, term }),
                        Some(_) => {}
                    }
                }
            }
            // To go on after a pass or release that may still land, it takes its own row again.
            Some(term) if mind.silent => {
                if may_move(term) {
                    send(Change::Take { by, term });
                }
            }
            Some(term) => {
                if self.scope.release && may_move(term) {
                    send(Change::Release { by, term });
                }
                let asked = mind.listed.filter(|row| row.term == term).and_then(|row| row.named);
                if let Some(to) = asked.filter(|_| self.scope.hand_over && may_move(term)) {
                    send(Change::Pass { by, term, to });
                }
                let from = mind.checkpoint;
                if self.scope.checkpoints && from < END {
                    for to in from + 1..END {
                        send(Change::Checkpoint { by, term, from, to });
                    }
                    send(Change::End { by, term, from });
                }
            }
        }
    }

    fn is_free(&self, agent: &Agent, owner: Option<Id>) -> bool {
        let Some(owner) = owner.filter(|owner| *owner != agent.id) else { return true };
        match agent.seen[usize::from(owner)] {
            Seen::Fenced | Seen::Gone(LEASE..) => true,
            Seen::Alive(_, LEASE..) if self.flaw == Flaw::TakesWithoutTheFence => true,
            _ => self.flaw == Flaw::TakesFromABeatingOwner,
        }
    }

    fn comings_and_goings(&self, w: usize, agent: &Agent, world: &World, steps: &mut Vec<Step>) {
        let first_id = agent.id.is_multiple_of(2);
        if agent.joined && first_id {
            steps.push(Step::Stop(w));
            let idle = agent.call == Call::None && agent.beat == Beat::None;
            if idle && agent.minds.iter().all(|mind| mind.hold.is_none()) {
                let leave = Pulse::Leave(agent.counter);
                steps.push(Step::Send(w, Request::Heart(agent.id, leave)));
            }
        }
        if !agent.joined && self.join(world, agent).is_some() {
            steps.push(Step::Join(w));
        }
        for id in 0..IDS {
            let named = (0..self.scope.leases).any(|l| world.leases[l].owner == Some(small(id)));
            let goes = self.rules.heart(world.hearts[id], small(id), Pulse::Delete).is_some();
            if goes && !named {
                steps.push(Step::DeleteHeart(w, small(id)));
            }
        }
    }

    /// The id of the next join and its heart.
    fn join(&self, world: &World, agent: &Agent) -> Option<(Id, Heart)> {
        let id = match (self.flaw, agent.id % 2) {
            (Flaw::JoinsUnderTheOldId, _) => agent.id,
            (_, 0) => agent.id + 1,
            _ => return None,
        };
        Some((id, self.rules.heart(world.hearts[usize::from(id)], id, Pulse::Join)?))
    }

    /// The world after a step, or the promise that the step broke.
    pub(crate) fn take(&self, mut world: World, step: Step) -> Result<World, String> {
        match step {
            Step::Tick => return Ok(world.after_a_tick()),
            Step::Beat(w)
            | Step::BeatArrives(w)
            | Step::BeatReply(w)
            | Step::BeatGivenUp(w)
            | Step::BeatLeftToLandLate(w)
            | Step::BeatReadBack(w)
            | Step::BeatRetry(w)
            | Step::LateBeatLands(w) => self.beat(&mut world, w, step),
            Step::Look(w, id) => {
                let seen = &mut world.agents[w].seen[usize::from(id)];
                *seen = sight(*seen, world.hearts[usize::from(id)]);
            }
            Step::List(w, lease) => {
                world.agents[w].minds[lease].listed = Some(self.listed(world.leases[lease]));
            }
            Step::Send(w, request) => self.send(&mut world.agents[w], request),
            Step::Arrives(w) => {
                let Call::Sent(request) = world.agents[w].call else { return Ok(world) };
                let outcome = self.land(&mut world, request)?;
                world.agents[w].call = Call::Answered(request, outcome);
            }
            Step::LateLands(w) => {
                if let Some(request) = world.agents[w].late.take() {
                    self.land(&mut world, request)?;
                }
            }
            Step::Reply(w) => {
                let Call::Answered(request, outcome) = world.agents[w].call else {
                    return Ok(world);
                };
                world.agents[w].call = Call::None;
                self.hear(&mut world, w, request, outcome)?;
            }
            Step::GivenUp(w) | Step::LeftToLandLate(w) => {
                let agent = &mut world.agents[w];
                if let Call::Sent(request) | Call::Answered(request, _) = agent.call {
                    agent.call = Call::Unresolved(request);
                    if step == Step::LeftToLandLate(w) {
                        agent.late = Some(request);
                    }
                }
            }
            Step::ReadBack(w) => self.read_back(&mut world, w)?,
            Step::Abandon(w) => world.agents[w].call = Call::None,
            Step::Stop(w) => world.agents[w].stop(),
            Step::Join(w) => {
                if let Some((id, heart)) = self.join(&world, &world.agents[w]) {
                    world.hearts[usize::from(id)] = heart;
                    let agent = &mut world.agents[w];
                    (agent.id, agent.joined, agent.counter, agent.age) = (id, true, 0, 0);
                }
            }
            Step::DeleteHeart(_, id) => world.hearts[usize::from(id)] = Heart::Absent,
        }
        Ok(world)
    }

    fn beat(&self, world: &mut World, w: usize, step: Step) {
        let agent = &mut world.agents[w];
        let heart = &mut world.hearts[usize::from(agent.id)];
        let pulse = Pulse::Beat(agent.counter);
        agent.beat = match (step, agent.beat) {
            (Step::Beat(_), _) => Beat::Sent(0),
            (Step::BeatArrives(_), Beat::Sent(age)) => {
                let after = self.rules.heart(*heart, agent.id, pulse);
                // A refused retry is judged by the row that came with the refusal.
                let resolved = || self.rules.resolve_heart(*heart, agent.id, pulse);
                let ok = after.is_some() || resolved() == Resolution::Applied;
                *heart = after.unwrap_or(*heart);
                Beat::Answered(age, ok)
            }
            (Step::BeatReply(_), Beat::Answered(age, ok)) => {
                self.hear_beat(agent, age, ok);
                Beat::None
            }
            (Step::BeatGivenUp(_), Beat::Sent(age) | Beat::Answered(age, _)) => {
                Beat::Unresolved(age)
            }
            (Step::BeatLeftToLandLate(_), Beat::Sent(age)) => {
                agent.late_beat = Some((agent.id, agent.counter));
                Beat::Unresolved(age)
            }
            (Step::BeatReadBack(_), Beat::Unresolved(age)) => {
                match self.rules.resolve_heart(*heart, agent.id, pulse) {
                    Resolution::Applied => {
                        self.hear_beat(agent, age, true);
                        Beat::None
                    }
                    Resolution::NotApplied => {
                        self.hear_beat(agent, age, false);
                        Beat::None
                    }
                    Resolution::StillUnknown => Beat::Unresolved(age),
                }
            }
            (Step::BeatRetry(_), Beat::Unresolved(age)) => {
                Beat::Sent(if self.flaw == Flaw::RetryCountsAnew { 0 } else { age })
            }
            (_, beat) => {
                if let Some((id, counter)) = agent.late_beat.take() {
                    let heart = &mut world.hearts[usize::from(id)];
                    *heart = self.rules.heart(*heart, id, Pulse::Beat(counter)).unwrap_or(*heart);
                }
                beat
            }
        };
    }

    fn hear_beat(&self, agent: &mut Agent, age: u8, ok: bool) {
        if !ok {
            agent.beat = Beat::None;
            agent.stop();
            return;
        }
        agent.counter += 1;
        if agent.age < LEASE || self.flaw.resumes_after_expiry() {
            agent.age = if self.flaw == Flaw::DeadlineFromTheReply { 0 } else { age };
        }
    }

    fn send(&self, agent: &mut Agent, request: Request) {
        agent.call = Call::Sent(request);
        match request {
            Request::Heart(_, Pulse::Leave(_)) => agent.stop(),
            Request::Lease(lease, Change::Pass { .. }) if self.flaw != Flaw::GoesOnAfterAPass => {
                agent.minds[usize::from(lease)].silent = true;
            }
            Request::Lease(lease, Change::Release { .. })
                if self.flaw != Flaw::GoesOnAfterARelease =>
            {
                agent.minds[usize::from(lease)].silent = true;
            }
            _ => {}
        }
    }

    /// The store applies a request, if its condition holds.
    fn land(&self, world: &mut World, request: Request) -> Result<Option<Option<Row>>, String> {
        match request {
            Request::Heart(id, pulse) => {
                let heart = &mut world.hearts[usize::from(id)];
                let after = self.rules.heart(*heart, id, pulse);
                *heart = after.unwrap_or(*heart);
                Ok(after.map(|_| None))
            }
            Request::Lease(lease, change) => {
                let row = &mut world.leases[usize::from(lease)];
                let Some(after) = self.rules.lease(*row, change) else {
                    // A refused retry is judged by the row that came with the refusal.
                    let resolution = self.rules.resolve_lease(*row, change);
                    return Ok((resolution == Resolution::Applied).then_some(Some(*row)));
                };
                if let Change::Checkpoint { by, term, .. } | Change::End { by, term, .. } = change
                    && (row.owner, row.term) != (Some(by), term)
                {
                    return Err(format!("lease {lease} took a checkpoint from who had lost it"));
                }
                if after.checkpoint < row.checkpoint {
                    return Err(format!("the checkpoint of lease {lease} went back"));
                }
                *row = after;
                Ok(Some(Some(after)))
            }
        }
    }

    /// A worker learns how its request ended: `Some` if it was applied.
    fn hear(
        &self,
        world: &mut World,
        w: usize,
        request: Request,
        outcome: Option<Option<Row>>,
    ) -> Result<(), String> {
        let agent = &mut world.agents[w];
        let (lease, change) = match request {
            Request::Heart(id, _) => {
                let fenced = if outcome.is_some() { Seen::Fenced } else { Seen::Never };
                agent.seen[usize::from(id)] = fenced;
                return Ok(());
            }
            Request::Lease(lease, change) => (usize::from(lease), change),
        };
        let mind = &mut agent.minds[lease];
        let before = mind.listed.take();
        match (change, outcome.flatten()) {
            (Change::Take { .. }, Some(row)) => {
                mind.hold = Some(row.term);
                mind.silent = false;
                mind.checkpoint = row.checkpoint;
                if let Some(before) = before.filter(|_| self.flaw == Flaw::ReadsOnFromTheListedRow)
                {
                    mind.checkpoint = before.checkpoint;
                }
                if mind.checkpoint < world.acked[lease] {
                    return Err(format!("a taker of lease {lease} reads what was done before"));
                }
            }
            (Change::Checkpoint { to, .. }, Some(_)) => {
                mind.checkpoint = to;
                world.acked[lease] = world.acked[lease].max(to);
            }
            (Change::End { .. }, Some(_)) => {
                mind.checkpoint = END;
                world.acked[lease] = END;
            }
            // Refused, and yet an older copy of the same pass may land once the taker asks again:
            // it stays silent under this term.
            (Change::Name { .. } | Change::Withdraw { .. }, _) | (Change::Pass { .. }, None) => {}
            _ => (mind.hold, mind.silent) = (None, false),
        }
        Ok(())
    }

    fn read_back(&self, world: &mut World, w: usize) -> Result<(), String> {
        let Call::Unresolved(request) = world.agents[w].call else { return Ok(()) };
        let (resolution, row) = match request {
            Request::Heart(id, pulse) => {
                (self.rules.resolve_heart(world.hearts[usize::from(id)], id, pulse), None)
            }
            Request::Lease(lease, change) => {
                let row = world.leases[usize::from(lease)];
                (self.rules.resolve_lease(row, change), Some(row))
            }
        };
        world.agents[w].call = Call::None;
        match (resolution, request, row) {
            (Resolution::StillUnknown, _, _) => world.agents[w].call = Call::Sent(request),
            (Resolution::Applied, _, row) => self.hear(world, w, request, Some(row))?,
            // Another write of mine came first: the row is still mine, and it says where.
            (
                Resolution::NotApplied,
                Request::Lease(
                    lease,
                    Change::Checkpoint { by, term, .. } | Change::End { by, term, .. },
                ),
                Some(row),
            ) if (row.owner, row.term) == (Some(by), term) => {
                let mind = &mut world.agents[w].minds[usize::from(lease)];
                mind.checkpoint = row.checkpoint;
            }
            (Resolution::NotApplied, _, _) => self.hear(world, w, request, None)?,
        }
        Ok(())
    }
}

/// What a look makes of a heart: a counter that stands still grows older, any other is new.
fn sight(before: Seen, heart: Heart) -> Seen {
    match (before, heart) {
        (Seen::Alive(counter, age), Heart::Alive(now)) if counter == now => {
            Seen::Alive(counter, age)
        }
        (Seen::Gone(age), Heart::Absent) => Seen::Gone(age),
        (_, Heart::Alive(now)) => Seen::Alive(now, 0),
        (_, Heart::Absent) => Seen::Gone(0),
        (_, Heart::Fenced(_)) => Seen::Fenced,
    }
}

/// Whether the worker has listed a lease of that id.
fn names(agent: &Agent, id: usize) -> bool {
    let owner = Some(small(id));
    agent.minds.iter().any(|mind| mind.listed.is_some_and(|row| row.owner == owner))
}

fn small(number: usize) -> u8 {
    u8::try_from(number).expect("ids and leases are few")
}
