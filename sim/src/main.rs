//! `cargo xtask sim`: runs seeds and says how to replay one that fails.

use anabranch_sim::flaw::Flaw;
use anabranch_sim::scenarios::leases;
use anabranch_sim::seeds;
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask sim [--seeds N] [--seed S [--full]] [--flaw NAME]

  --seeds N      run seeds 0 to N-1 on all cores (default 200)
  --seed S       run one seed, and show what it breaks
  --full         with --seed: show its whole history
  --flaw NAME    break one thing on purpose; see sim/src/flaw/mod.rs for names";

/// What was asked for.
struct Asked {
    seeds: u64,
    seed: Option<u64>,
    full: bool,
    flaw: Flaw,
}

fn main() -> ExitCode {
    match asked(std::env::args().skip(1)) {
        Ok(Some(asked)) => match asked.seed {
            Some(seed) => one(seed, &asked),
            None => many(&asked),
        },
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

fn asked(mut args: impl Iterator<Item = String>) -> Result<Option<Asked>, String> {
    let mut asked = Asked { seeds: 200, seed: None, full: false, flaw: Flaw::None };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--seeds" => asked.seeds = whole(&arg, &value()?)?,
            "--seed" => asked.seed = Some(whole(&arg, &value()?)?),
            "--full" => asked.full = true,
            "--flaw" => {
                let name = value()?;
                let names: Vec<String> = Flaw::ALL.iter().map(Flaw::to_string).collect();
                let unknown = || format!("no flaw {name:?}; there are {}", names.join(", "));
                asked.flaw = Flaw::named(&name).ok_or_else(unknown)?;
            }
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    Ok(Some(asked))
}

fn whole(name: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{name} takes a whole number, not {value:?}"))
}

fn one(seed: u64, asked: &Asked) -> ExitCode {
    let report = leases::run(seed, asked.flaw);
    if asked.full {
        print!("{}", report.history());
    }
    if let Some(story) = report.story() {
        println!("{story}");
        return ExitCode::FAILURE;
    }
    let (moves, deliveries) = (report.moves, report.deliveries);
    println!("seed {seed}: every promise held ({moves} moves, {deliveries} deliveries)");
    ExitCode::SUCCESS
}

fn many(asked: &Asked) -> ExitCode {
    let part = (asked.seeds / 20).max(1);
    let summary = seeds::run(
        0..asked.seeds,
        |seed| leases::run(seed, asked.flaw),
        |summary, _| {
            if summary.seeds.is_multiple_of(part) {
                println!(
                    "{} of {} seeds, {} broken",
                    summary.seeds,
                    asked.seeds,
                    summary.broken.len()
                );
            }
            true
        },
    );
    for (_, story) in summary.broken.iter().take(3) {
        println!("\n{story}");
    }
    let broken: Vec<String> = summary.broken.iter().map(|(seed, _)| seed.to_string()).collect();
    println!("\n{summary}{}{}", if broken.is_empty() { "" } else { ": seeds " }, broken.join(", "));
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
