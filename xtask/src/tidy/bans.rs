//! Calls that product code may not make, and the files that may.

use super::sources::Source;

struct Ban {
    call: &'static str,
    /// Ends of the paths of files that may make the call.
    except: &'static [&'static str],
    instead: &'static str,
}

const CLOCK: &[&str] = &["/clock.rs"];
const IN_CLOCK: &str = "time and randomness enter through clock.rs";
const OWNED: &str = "every task has an owner: spawn into a JoinSet";
const BOUNDED: &str = "every queue has a bound with a name";

const BANS: [Ban; 12] = [
    Ban { call: "SystemTime::now", except: CLOCK, instead: IN_CLOCK },
    Ban { call: "Instant::now", except: CLOCK, instead: IN_CLOCK },
    Ban { call: "rand::rng", except: CLOCK, instead: IN_CLOCK },
    Ban { call: "rand::random", except: CLOCK, instead: IN_CLOCK },
    Ban { call: "fastrand::u", except: CLOCK, instead: IN_CLOCK },
    Ban { call: "fastrand::Rng::new", except: CLOCK, instead: IN_CLOCK },
    Ban { call: "getrandom", except: CLOCK, instead: IN_CLOCK },
    Ban { call: "tokio::spawn", except: &[], instead: OWNED },
    Ban { call: "task::spawn(", except: &[], instead: OWNED },
    Ban { call: "unbounded_channel", except: &[], instead: BOUNDED },
    Ban { call: "mpsc::channel()", except: &[], instead: BOUNDED },
    Ban { call: "mem::forget", except: &[], instead: "let the owner drop it" },
];

pub(crate) fn check(sources: &[Source]) -> Result<(), String> {
    // xtask measures and waits by the wall clock; it is not product code.
    let product = sources.iter().filter(|s| !s.is_test() && !s.path.starts_with("xtask/"));
    let problems: Vec<String> = product.flat_map(violations).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

fn violations(source: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    let lines: Vec<(usize, &str)> = source.product_lines().collect();
    for (i, (number, line)) in lines.iter().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        for ban in &BANS {
            let here = !ban.except.iter().any(|end| source.path.ends_with(end));
            if here && line.contains(ban.call) {
                problems.push(format!("{}:{number}: {}: {}", source.path, ban.call, ban.instead));
            }
        }
        let next = lines.get(i + 1).map_or("", |(_, next)| next.trim());
        if line.contains("select! {") && !next.starts_with("biased;") {
            let why = "select! is biased, with the stop arm first";
            problems.push(format!("{}:{number}: {why}", source.path));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_one(path: &str, text: &str, expected: usize) {
        let source = Source { path: path.into(), text: text.into() };
        assert_eq!(violations(&source).len(), expected, "{path}: {text}");
    }

    #[test]
    fn banned_calls_are_found_in_product_code_only() {
        check_one("crates/a/src/b.rs", "let t = Instant::now();", 1);
        check_one("crates/a/src/clock.rs", "let t = Instant::now();", 0);
        check_one("crates/a/src/b.rs", "// Instant::now()", 0);
        check_one("crates/a/src/b.rs", "fn f() {}\n#[cfg(test)]\nmod tests { Instant::now() }", 0);
        check_one("crates/a/src/b.rs", "tokio::select! {\n    a = b => {}", 1);
        check_one("crates/a/src/b.rs", "tokio::select! {\n    biased;", 0);
    }
}
