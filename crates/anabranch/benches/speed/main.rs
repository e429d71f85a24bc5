//! CPU cost per record of the producer and the consumer, compared with a plain loop on the AWS SDK.
//! All cases run against a sink that sends canned replies from a process of its own.
//!
//! Run by `cargo xtask bench producer` and `cargo xtask bench consumer`.
//!
//! ```text
//! speed producer [records]     ours and the plain SDK, 100 B and 1 KiB, few and many outstanding
//!   ... [records] [case]       only the cases whose names contain this; no comparison;
//!                              "tls" selects the cases over TLS and HTTP/2, with the plain SDK
//! speed memory [records]       resident memory over many records and a slow sink
//! speed consumer [records]     ours and the plain SDK, plain and aggregated, JSON and CBOR
//! speed sink [delay_ms]        the sink; prints its port
//! speed tls-sink               the sink over TLS; prints its port and its certificate
//! ```

mod cpu;
mod sink;
mod tls_sink;
mod replies;
mod endpoint;
mod table;
mod produce;
mod floor;
mod memory;
mod consume;

use std::process::ExitCode;

fn main() -> ExitCode {
    // `cargo bench` adds this flag.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |text: Option<&&str>, default: u64| text.map_or(Ok(default), |t| t.parse());
    let outcome = match words.as_slice() {
        ["sink", rest @ ..] => number(rest.first(), 0).map(sink::run),
        ["tls-sink"] => Ok(tls_sink::run()),
        ["producer", rest @ ..] => {
            number(rest.first(), 2_000_000).map(|records| produce::run(records, rest.get(1)))
        }
        ["memory", rest @ ..] => number(rest.first(), 10_000_000).map(memory::run),
        ["consumer", rest @ ..] => {
            number(rest.first(), 2_000_000).map(|records| consume::run(records, rest.get(1)))
        }
        _ => {
            eprintln!(
                "usage: speed producer|memory|consumer [RECORDS] [CASE], or speed sink [DELAY_MS]"
            );
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(why)) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: that is not a number: {error}");
            ExitCode::from(2)
        }
    }
}
