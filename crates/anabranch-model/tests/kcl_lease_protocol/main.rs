//! Exploration of every interleaving of two workers over one lease with the real rules of KCL's
//! table, without steals. A lease is taken when it has no owner, or when its counter has not
//! changed for a lease time. It is handed over to the worker that requested it.
//!
//! The native table has an exploration of its own, `lease_protocol`. Here the lease counter is the
//! sign of life, so each worker has one writer and there are no other messages. Messages of the
//! first owner get lost and arrive late; those of the other one are only delayed.

mod world;

use anabranch_model::lease::table::kcl;
use anabranch_model::lease::{Layout, Nonce, Resolution, StoredRow, Write, resolve};
use std::collections::HashMap;
use world::{
    Call, END, Flaw, LEASE, LeaseAction, ModelWorker, Request, Row, Step, TICKS, World, change,
    key, listed, older, pack, unpack,
};

/// Transfers of the lease besides expiry. Both together have too many states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ways {
    Releases,
    HandOvers,
}

struct Walk(Flaw, Ways);

impl Walk {
    /// No write begins at a higher counter.
    fn counters(&self) -> u8 {
        if self.1 == Ways::Releases { 3 } else { 4 }
    }

    fn may_deliver(&self, agent: &ModelWorker) -> bool {
        let in_time = agent.age < LEASE || self.0 == Flaw::RenewsAfterItsExpiry;
        agent.hold.is_some() && !agent.silent && in_time
    }

    fn check(&self, world: &World) -> Result<(), &'static str> {
        if world.agents.iter().all(|agent| self.may_deliver(agent)) {
            return Err("both workers may deliver");
        }
        if world.row.checkpoint < world.acked {
            return Err("the row lacks a checkpoint that was acknowledged");
        }
        Ok(())
    }

    fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = if world.tick < TICKS { vec![Step::Tick] } else { vec![] };
        for (w, agent) in world.agents.iter().enumerate() {
            let news = agent.seen.is_none_or(|(row, _)| row != listed(world.row));
            let is_asked = agent.hold.is_some() && world.row.named && !agent.asked;
            if (agent.hold.is_none() && news) || is_asked {
                steps.push(Step::Look(w));
            }
            match agent.call {
                Call::None => steps.extend(self.sends(w, agent).map(|act| Step::Send(w, act))),
                Call::Sent(..) => {
                    steps.push(Step::Arrives(w));
                    // A lost request is a late one that never arrives.
                    if w == 0 && agent.late.is_none() {
                        steps.push(Step::GivenUp(w, true));
                    }
                }
                Call::Answered(..) => {
                    steps.push(Step::Reply(w));
                    if w == 0 {
                        steps.push(Step::GivenUp(w, false));
                    }
                }
                Call::Unresolved(..) => steps.extend([Step::ReadBack(w), Step::Abandon(w)]),
            }
            if agent.late.is_some() {
                steps.push(Step::LateLands(w));
            }
        }
        steps
    }

    fn sends(&self, w: usize, agent: &ModelWorker) -> impl Iterator<Item = LeaseAction> {
        let in_time = agent.age < LEASE || self.0 == Flaw::RenewsAfterItsExpiry;
        let mut acts = Vec::new();
        match (agent.hold, agent.seen) {
            (Some(counter), _) if counter < self.counters() && in_time => {
                if agent.silent {
                    acts.push(LeaseAction::Take);
                } else {
                    if w == 0 {
                        acts.push(LeaseAction::Renew);
                    }
                    if w == 0 && self.1 == Ways::Releases {
                        acts.push(LeaseAction::Release);
                    }
                    if agent.asked {
                        acts.push(LeaseAction::Pass);
                    }
                    let from = agent.checkpoint;
                    // The releases show that checkpoints are fenced.
                    let last = if self.1 == Ways::Releases { END } else { from };
                    acts.extend((from + 1..=last).map(|to| LeaseAction::Checkpoint { from, to }));
                }
            }
            (None, Some((row, age))) if row.counter < self.counters() => {
                if w == 1 && row.owner == Some(0) && self.1 == Ways::HandOvers {
                    acts.push(if row.named { LeaseAction::Withdraw } else { LeaseAction::Name });
                }
                let free = row.owner.is_none_or(|owner| usize::from(owner) == w);
                if free || age >= LEASE || self.0 == Flaw::TakesFromABeatingOwner {
                    acts.push(LeaseAction::Take);
                }
            }
            _ => {}
        }
        acts.into_iter()
    }

    fn take(&self, mut world: World, step: Step) -> Result<World, &'static str> {
        match step {
            Step::Tick => {
                world.tick += 1;
                for agent in &mut world.agents {
                    agent.age = older(agent.age);
                    agent.doubt = agent.doubt.map(older);
                    agent.seen = agent.seen.map(|(row, age)| (row, older(age)));
                    if let Call::Sent(_, age)
                    | Call::Answered(_, age, _)
                    | Call::Unresolved(_, age) = &mut agent.call
                    {
                        *age = older(*age);
                    }
                }
            }
            Step::Look(w) if world.agents[w].hold.is_some() => {
                world.agents[w].asked =
                    world.row.named && world.row.owner.map(usize::from) == Some(w);
            }
            Step::Look(w) => {
                let seen = &mut world.agents[w].seen;
                let same = seen.filter(|(row, _)| row.counter == world.row.counter);
                *seen = Some((listed(world.row), same.map_or(0, |(_, age)| age)));
            }
            Step::Send(w, act) => {
                let agent = &mut world.agents[w];
                let known = agent.hold.or(agent.seen.map(|(row, _)| row.counter));
                let by = u8::try_from(w).expect("two workers");
                let counter = known.expect("it holds the lease, or has seen it");
                agent.silent |= match act {
                    LeaseAction::Release => self.0 != Flaw::GoesOnAfterARelease,
                    LeaseAction::Pass => self.0 != Flaw::GoesOnAfterAPass,
                    _ => false,
                };
                agent.call = Call::Sent(Request { by, counter, act }, 0);
            }
            Step::Arrives(w) => {
                if let Call::Sent(request, age) = world.agents[w].call {
                    let answer = self.land(&mut world, request)?;
                    world.agents[w].call = Call::Answered(request, age, answer);
                }
            }
            Step::LateLands(w) => {
                if let Some(request) = world.agents[w].late.take() {
                    let _nobody_hears = self.land(&mut world, request)?;
                }
            }
            Step::Reply(w) => {
                if let Call::Answered(request, age, answer) = world.agents[w].call {
                    world.agents[w].call = Call::None;
                    match answer {
                        Ok(row) => self.applied(&mut world, w, request, row, age, false)?,
                        Err(row) => self.judge(&mut world, w, request, row, age)?,
                    }
                }
            }
            Step::GivenUp(w, late) => {
                let agent = &mut world.agents[w];
                if let Call::Sent(request, age) | Call::Answered(request, age, _) = agent.call {
                    agent.call = Call::Unresolved(request, age);
                    if late {
                        agent.late = Some(request);
                    }
                }
            }
            Step::ReadBack(w) => {
                if let Call::Unresolved(request, age) = world.agents[w].call {
                    let row = world.row;
                    if self.resolve(request, row) == Resolution::StillUnknown {
                        world.agents[w].call = Call::Sent(request, age);
                    } else {
                        world.agents[w].call = Call::None;
                        self.judge(&mut world, w, request, row, age)?;
                    }
                }
            }
            Step::Abandon(w) => {
                let agent = &mut world.agents[w];
                if let Call::Unresolved(_, age) = agent.call {
                    agent.doubt = Some(agent.doubt.unwrap_or(0).max(age));
                    agent.call = Call::None;
                    agent.silent &= self.0 != Flaw::ReadsOnWithoutTakingAgain;
                }
            }
        }
        Ok(world)
    }

    /// Applies a request to the store, if its condition holds.
    fn land(&self, world: &mut World, request: Request) -> Result<Result<Row, Row>, &'static str> {
        let mut row = world.row;
        let broken = match request.act {
            LeaseAction::Release => {
                self.0 == Flaw::ReleasesAsJavaDoes && row.owner == Some(request.by)
            }
            LeaseAction::Take => self.0 == Flaw::TakeSkipsTheCounter,
            LeaseAction::Checkpoint { .. } => self.0 == Flaw::CheckpointSkipsTheCounter,
            LeaseAction::Pass => self.0 == Flaw::PassSkipsTheCounter,
            LeaseAction::Renew | LeaseAction::Name | LeaseAction::Withdraw => false,
        };
        if broken {
            row.counter = request.counter;
        }
        let before = unpack(row);
        let Ok(Some(after)) = kcl::lease_after(&key(), &change(request), Some(&before)) else {
            return Ok(Err(world.row));
        };
        let mut after = pack(&after);
        if request.act == LeaseAction::Pass && self.0 == Flaw::PassLooksLikeATake {
            after.counter = request.counter + 1;
        }
        if matches!(request.act, LeaseAction::Checkpoint { .. })
            && world.row.owner != Some(request.by)
        {
            return Err("the row took a checkpoint from who had lost the lease");
        }
        if after.checkpoint < world.row.checkpoint {
            return Err("the checkpoint went back");
        }
        world.row = after;
        Ok(Ok(after))
    }

    fn resolve(&self, request: Request, row: Row) -> Resolution {
        if self.0 == Flaw::ReadBackComparesTheCounterOnly {
            let same = row.counter == request.counter + 1;
            return if same { Resolution::Applied } else { Resolution::NotApplied };
        }
        let write = Write::lease(&key(), change(request), Nonce(0));
        resolve(Layout::Kcl, &write, &StoredRow::of_lease(Some(&unpack(row))))
    }

    /// Processes a refusal or a read-back: the row shows whether the write was applied before.
    fn judge(
        &self,
        world: &mut World,
        w: usize,
        request: Request,
        row: Row,
        age: u8,
    ) -> Result<(), &'static str> {
        if self.resolve(request, row) == Resolution::Applied {
            return self.applied(world, w, request, row, age, true);
        }
        let agent = &mut world.agents[w];
        match request.act {
            // The owner may have it back, by a take.
            LeaseAction::Pass if row.owner == Some(request.by) => {
                (agent.hold, agent.asked) = (Some(row.counter), row.named);
                agent.silent &= self.0 != Flaw::ReadsOnWithoutTakingAgain;
            }
            LeaseAction::Name | LeaseAction::Withdraw => agent.seen = None,
            _ => (agent.hold, agent.silent, agent.seen) = (None, false, None),
        }
        Ok(())
    }

    fn applied(
        &self,
        world: &mut World,
        w: usize,
        request: Request,
        row: Row,
        age: u8,
        resolved: bool,
    ) -> Result<(), &'static str> {
        let agent = &mut world.agents[w];
        let doubt = agent
            .doubt
            .take()
            .filter(|_| resolved && self.0 != Flaw::ResolvedRenewalCountsFromItself);
        match request.act {
            LeaseAction::Release | LeaseAction::Pass => {
                (agent.hold, agent.silent, agent.seen) = (None, false, None);
                return Ok(());
            }
            LeaseAction::Name | LeaseAction::Withdraw => {
                // Like a poll at that moment: the age of the counter continues.
                agent.seen = agent.seen.map(|(seen, age)| (Row { named: row.named, ..seen }, age));
                return Ok(());
            }
            _ => agent.asked = row.named,
        }
        let new_hold = request.act == LeaseAction::Take;
        if agent.hold.is_none() && !new_hold {
            return Ok(());
        }
        if agent.age < LEASE || new_hold || self.0 == Flaw::RenewsAfterItsExpiry {
            let from_reply = self.0 == Flaw::DeadlineFromTheReply;
            agent.age = if from_reply { 0 } else { age.max(doubt.unwrap_or(0)) };
        }
        agent.hold = Some(row.counter);
        agent.silent &= !new_hold;
        agent.checkpoint = row.checkpoint;
        if let LeaseAction::Checkpoint { to, .. } = request.act {
            world.acked = world.acked.max(to);
        }
        // A reply that arrives after the deadline starts nothing.
        if agent.checkpoint < world.acked && new_hold && agent.age < LEASE {
            return Err("a taker reads what was done before");
        }
        Ok(())
    }
}

/// Explores all reachable states. Returns their number, or the shortest path to a violation.
fn explore(flaw: Flaw, ways: Ways) -> Result<usize, String> {
    let walk = Walk(flaw, ways);
    let agent = ModelWorker {
        hold: None,
        silent: false,
        asked: false,
        checkpoint: 0,
        age: 0,
        call: Call::None,
        late: None,
        doubt: None,
        seen: None,
    };
    let row = Row { owner: Some(0), counter: 1, checkpoint: 0, named: false };
    let agents = [ModelWorker { hold: Some(1), ..agent }, agent];
    let start = World { tick: 0, row, agents, acked: 0 };
    let mut known: HashMap<World, Option<(World, Step)>> = HashMap::from([(start, None)]);
    let mut layer = vec![start];
    while !layer.is_empty() {
        let mut next = Vec::new();
        for world in layer {
            let story = |promise: &str, last: Option<Step>| {
                let mut steps: Vec<String> = last.iter().map(|step| format!("{step:?}")).collect();
                let mut at = world;
                while let Some(Some((before, step))) = known.get(&at) {
                    steps.insert(0, format!("t={} {step:?}", before.tick));
                    at = *before;
                }
                format!("{promise}: {}", steps.join(", "))
            };
            walk.check(&world).map_err(|promise| story(promise, None))?;
            let mut found = Vec::new();
            for step in walk.steps(&world) {
                let after = walk.take(world, step).map_err(|promise| story(promise, Some(step)))?;
                if !known.contains_key(&after) {
                    found.push((after, step));
                }
            }
            for (after, step) in found {
                if known.insert(after, Some((world, step))).is_none() {
                    next.push(after);
                }
            }
        }
        layer = next;
    }
    let handed_over = known.keys().any(|world| walk.may_deliver(&world.agents[1]));
    assert!(handed_over, "the walk never gets to worker 1");
    Ok(known.len())
}

#[test]
fn without_steals_two_workers_never_deliver_at_once_and_checkpoints_are_fenced() {
    for ways in [Ways::Releases, Ways::HandOvers] {
        let states = explore(Flaw::None, ways).unwrap_or_else(|story| panic!("{story}"));
        println!("{ways:?}: {states} states");
    }
}

#[test]
fn every_broken_rule_is_noticed() {
    let check = |flaw, ways| {
        let story = explore(flaw, ways).expect_err(&format!("{flaw:?} went unnoticed"));
        println!("{flaw:?}: {story}");
    };
    for flaw in [
        Flaw::ReleasesAsJavaDoes,
        Flaw::TakeSkipsTheCounter,
        Flaw::CheckpointSkipsTheCounter,
        Flaw::ResolvedRenewalCountsFromItself,
        Flaw::DeadlineFromTheReply,
        Flaw::RenewsAfterItsExpiry,
        Flaw::ReadBackComparesTheCounterOnly,
        Flaw::TakesFromABeatingOwner,
        Flaw::GoesOnAfterARelease,
    ] {
        check(flaw, Ways::Releases);
    }
    for flaw in [
        Flaw::GoesOnAfterAPass,
        Flaw::PassSkipsTheCounter,
        Flaw::PassLooksLikeATake,
        Flaw::ReadsOnWithoutTakingAgain,
    ] {
        check(flaw, Ways::HandOvers);
    }
}
