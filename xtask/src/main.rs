//! Developer commands: `cargo xtask test`, `tidy`, `sim`, `interop`, `bench`, `dist`.

mod shell;
mod debian;
mod tally;
mod third_party;
mod server;
mod tidy;
mod interop;
mod test_programs;
mod sim;
mod bench;
mod test;
mod dist;
mod demo_svg;

use std::io::Write as _;
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask <command>

  test                 everything: tidy, build, all tests, real clients
  tidy                 format, lints, file heads and sizes, type names, purity of the model,
                       banned calls, dependencies, prose, what documents name
  map                  print every source file with the first sentence of its documentation
  sim [--seeds N]      whole fleets in virtual time, with faults; --seed S replays one, --help says more
  interop [CLIENT …]   real SDKs against `anabranch local` (boto3, cli, javascript, go, java),
                       KCL's workers under the daemon (multilang), and Java's daemon before
                       and after ours (java-daemon)
  bench local          server CPU per record beside a peer, memory per record, time to ready
  bench multilang      the daemon with Python workers: records a second, CPU, memory, first record
  bench leases [PART]  planning, an idle fleet's calls beside KCL's, a fleet's start, hand-overs
                       (parts: plan, idle, takes, hand-over)
  bench producer       CPU per record beside a bare SDK loop and aiokpl, memory over many records
  bench consumer       CPU per record, plain and aggregated, JSON and CBOR, beside a bare SDK loop
  bench consumer --times   real processes: how soon the next record is handled after a stop, a kill, a split
  bench consumer --idle    memory and CPU of a worker with 100 shards and nothing to do
  bench relay          rows a second of the outbox relay, beside one row of each key a round
  demo-svg             record a run of `anabranch demo` as docs/demo.svg
  dist                 the one binary as it is shipped: static, optimised as a whole

`test` ends with a line that counts: N passed, N failed, N skipped.
With CI=true a skipped part is a failure.";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    if matches!(words.first(), Some(&("bench" | "dist"))) {
        shell::use_shipped();
    }
    match words.as_slice() {
        ["test"] => test::run(),
        ["tidy"] => tidy::run().close(),
        ["map"] => tidy::print_map(),
        ["sim", args @ ..] => sim::run(args),
        ["interop", clients @ ..] => interop::run(clients).close(),
        ["bench", "local"] => bench::local::run(),
        ["bench", "multilang"] => bench::multilang::run(),
        ["bench", "relay"] => bench::relay::run(),
        ["bench", "leases", parts @ ..] => bench::leases::run(parts),
        ["bench", "producer"] => bench::speed::producer(),
        ["bench", "consumer"] => bench::speed::consumer(),
        ["bench", "consumer", parts @ ..] if bench::workers::has(parts) => {
            bench::workers::run(parts)
        }
        ["demo-svg"] => demo_svg::run(),
        ["dist"] => dist::run(),
        ["help" | "--help" | "-h"] => {
            // A reader that closes the pipe early is not a failure.
            let _ = writeln!(std::io::stdout(), "{HELP}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("error: unknown command {:?}\n\n{HELP}", words.join(" "));
            ExitCode::from(2)
        }
    }
}
