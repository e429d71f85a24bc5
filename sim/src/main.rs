//! `cargo xtask sim`: runs seeds and prints how to replay one that fails.

use anabranch_model::lease::Layout;
use anabranch_sim::flaw::LeaseFlaw;
use anabranch_sim::flaw::consumer::ConsumerFlaw;
use anabranch_sim::scenarios::producer::ProducerFlaw;
use anabranch_sim::scenarios::{SeedReport, consumer, leases, producer};
use anabranch_sim::seeds;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

const HELP: &str = "\
cargo xtask sim [--consumer | --producer | --kcl2] [--seeds N [--from S]] [--seed S [--full]] [--flaw NAME]
                [--release]

  --consumer     fleets of whole consumers, instead of coordinators with pretend readers
  --producer     producers on a stream that is split, merged and made anew
  --kcl2         coordinators on KCL's table, which steal as KCL 2.x does
  --seeds N      run N seeds on all cores (default 200)
  --from S       with --seeds: begin at seed S instead of 0, to go on after an earlier run
  --seed S       run one seed, and show what it breaks
  --full         with --seed: show its whole history; without: 1000 seeds of both kinds of fleets
  --flaw NAME    break one thing on purpose; see sim/src/flaw/mod.rs for names
  --release      with the code as it is shipped: a longer build, and more seeds a second

Ctrl-C ends a run after the seeds that are under way, with what was found so far.";

/// Number of seeds in a full run.
const FULL: u64 = 1_000;

/// Parsed command line.
struct SimArgs {
    seeds: Option<u64>,
    from: u64,
    seed: Option<u64>,
    full: bool,
    consumer: bool,
    producer: bool,
    layout: Layout,
    flaw: Option<String>,
}

/// Scenario that is run for each seed.
enum SimRun {
    Leases(Layout, LeaseFlaw),
    Consumer(ConsumerFlaw),
    Producer(ProducerFlaw),
}

impl SimRun {
    /// Runs one seed. A panic of a checker or of the world itself counts as a violation.
    fn run(&self, seed: u64) -> SeedReport {
        let run = std::panic::catch_unwind(|| self.run_unguarded(seed));
        run.unwrap_or_else(|panic| {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or(panic.downcast_ref::<&str>().copied());
            SeedReport::panicked(seed, self.replay(seed), words.unwrap_or("without words"))
        })
    }

    /// Returns the command that replays a seed.
    fn replay(&self, seed: u64) -> String {
        let kind = match self {
            Self::Leases(Layout::Native, _) => "",
            Self::Leases(Layout::Kcl, _) => "--kcl2 ",
            Self::Consumer(_) => "--consumer ",
            Self::Producer(_) => "--producer ",
        };
        format!("cargo xtask sim {kind}--seed {seed}")
    }

    fn run_unguarded(&self, seed: u64) -> SeedReport {
        match self {
            Self::Leases(layout, flaw) => leases::run(seed, *layout, *flaw),
            Self::Consumer(flaw) => consumer::run(seed, *flaw),
            Self::Producer(wrong) => producer::run(seed, *wrong),
        }
    }
}

fn main() -> ExitCode {
    match asked(std::env::args().skip(1)).and_then(|asked| {
        let story = asked.as_ref().map(story).transpose()?;
        Ok(asked.zip(story))
    }) {
        Ok(Some((asked, story))) => {
            if let Some(seed) = asked.seed {
                return one(seed, &asked, &story);
            }
            std::thread::spawn(listen);
            let code = many(&asked, &story);
            ExitCode::from(code.max(others(&asked, &story)))
        }
        Ok(None) => {
            println!("{HELP}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("error: {why}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

fn asked(mut args: impl Iterator<Item = String>) -> Result<Option<SimArgs>, String> {
    let mut asked = SimArgs {
        seeds: None,
        from: 0,
        seed: None,
        full: false,
        consumer: false,
        producer: false,
        layout: Layout::Native,
        flaw: None,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--seeds" => asked.seeds = Some(whole(&arg, &value()?)?),
            "--from" => asked.from = whole(&arg, &value()?)?,
            "--seed" => asked.seed = Some(whole(&arg, &value()?)?),
            "--full" => asked.full = true,
            "--consumer" => asked.consumer = true,
            "--producer" => asked.producer = true,
            "--kcl2" => asked.layout = Layout::Kcl,
            "--flaw" => asked.flaw = Some(value()?),
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    Ok(Some(asked))
}

fn story(asked: &SimArgs) -> Result<SimRun, String> {
    fn find<T>(
        asked: &SimArgs,
        named: fn(&str) -> Option<T>,
        all: &[String],
    ) -> Result<Option<T>, String> {
        let Some(name) = &asked.flaw else { return Ok(None) };
        let unknown = || format!("no flaw {name:?}; there are {}", all.join(", "));
        named(name).map(Some).ok_or_else(unknown)
    }
    if asked.producer {
        let names: Vec<String> = ProducerFlaw::ALL.iter().map(ToString::to_string).collect();
        let wrong = find(asked, ProducerFlaw::named, &names)?;
        return Ok(SimRun::Producer(wrong.unwrap_or_default()));
    }
    if asked.consumer {
        let names: Vec<String> = ConsumerFlaw::ALL.iter().map(ToString::to_string).collect();
        let flaw = find(asked, ConsumerFlaw::named, &names)?;
        return Ok(SimRun::Consumer(flaw.unwrap_or_default()));
    }
    let names: Vec<String> = LeaseFlaw::ALL.iter().map(ToString::to_string).collect();
    let flaw = find(asked, LeaseFlaw::named, &names)?;
    Ok(SimRun::Leases(asked.layout, flaw.unwrap_or_default()))
}

fn whole(name: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{name} takes a whole number, not {value:?}"))
}

fn one(seed: u64, asked: &SimArgs, story: &SimRun) -> ExitCode {
    let report = story.run(seed);
    if asked.full {
        print!("{}", report.history());
    }
    if !report.drawn.is_empty() {
        println!("seed {seed} draws: {}", report.drawn.join(", "));
    }
    if let Some(story) = report.failure_text() {
        println!("{story}");
        return ExitCode::FAILURE;
    }
    let counted = seeds::counted(report.moves, report.placed, report.deliveries);
    println!("seed {seed}: every promise held ({counted})");
    ExitCode::SUCCESS
}

/// Runs whole consumers as well, if a full run was requested without a choice of scenario.
fn others(asked: &SimArgs, story: &SimRun) -> u8 {
    match story {
        SimRun::Leases(_, LeaseFlaw::None) if asked.full && !STOPPED.load(Ordering::Relaxed) => {
            many(asked, &SimRun::Consumer(ConsumerFlaw::None))
        }
        _ => 0,
    }
}

/// Runs many seeds. Returns the program's exit code.
fn many(asked: &SimArgs, story: &SimRun) -> u8 {
    let count = asked.seeds.unwrap_or(if asked.full { FULL } else { 200 });
    let part = (count / 50).clamp(1, 200);
    let summary = seeds::run(
        asked.from..asked.from.saturating_add(count),
        |seed| story.run(seed),
        |summary, report| {
            if let Some(violation) = &report.violation {
                println!("seed {}: {}; replay: {}", report.seed, violation.promise, report.replay);
            }
            if summary.seeds.is_multiple_of(part) {
                println!("{} of {} seeds, {} broken", summary.seeds, count, summary.broken.len());
            }
            !STOPPED.load(Ordering::Relaxed)
        },
    );
    if summary.seeds < count {
        println!("\nstopped after {} of {count} seeds", summary.seeds);
    }
    for (_, story) in summary.broken.iter().take(3) {
        println!("\n{story}");
    }
    let broken: Vec<String> = summary.broken.iter().map(|(seed, _)| seed.to_string()).collect();
    println!("\n{summary}{}{}", if broken.is_empty() { "" } else { ": seeds " }, broken.join(", "));
    u8::from(!broken.is_empty())
}

/// True once the user asked to stop.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Waits for Ctrl-C: the first one ends the run after the current seeds, the second one at once.
fn listen() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return };
    for asked in 1.. {
        if runtime.block_on(tokio::signal::ctrl_c()).is_err() {
            return;
        }
        if asked > 1 {
            std::process::exit(130);
        }
        STOPPED.store(true, Ordering::Relaxed);
        println!("stopping after the seeds that are under way; again stops at once");
    }
}
