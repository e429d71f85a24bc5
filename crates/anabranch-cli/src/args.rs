//! Command line definition, and one-line messages for usage errors.

use crate::commands::{
    consume, cp, demo, doctor, leases, local, multilang, put, redrive, relay, shards, shell, tail,
};
use crate::connection;
use crate::failure::CommandFailure;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use std::ffi::OsString;

/// Kinesis consumers and producers that keep every key in order through splits and merges.
#[derive(Debug, Parser)]
#[command(name = "anabranch", version, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "\
Exit codes: 0 success, 1 bad result (records refused, a guarantee broken, a problem found), 2 \
could not start.
Settings may also come from variables (ANABRANCH_ENDPOINT, …) and anabranch.toml: docs/cli.md.")]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
    #[command(flatten)]
    pub(crate) connection: connection::ConnectionOptions,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum CliCommand {
    /// Run a local Kinesis stream (and DynamoDB) for development and tests
    Local(local::LocalOptions),
    /// Demonstrate that order survives splits, merges and a killed worker
    Demo(demo::DemoOptions),
    /// Worker process of the demo
    #[command(hide = true)]
    DemoWorker(demo::worker::DemoWorkerOptions),
    /// Put records into a stream, each key in order
    Put(put::PutOptions),
    /// Print the records of a stream as they arrive
    Tail(tail::TailOptions),
    /// Copy records between streams and files, each key in order
    Cp(cp::CopyOptions),
    /// Pass every record of a stream to a program or print it, with checkpoints
    Consume(consume::ConsumeOptions),
    /// Handle the dead letters of `consume --dead-letter` again
    Redrive(redrive::RedriveOptions),
    /// Show the shards of a stream as a tree, and the reasons for unread shards
    Shards(shards::ShardsOptions),
    /// Show the leases of an application or change them: reset, release, snapshot, copy
    Leases(leases::LeasesOptions),
    /// Diagnose a stream and its application, and suggest fixes
    Doctor(doctor::DoctorOptions),
    /// Relay the rows of a PostgreSQL outbox to a stream, each key in order
    Relay(relay::RelayOptions),
    /// Run KCL workers written in other languages, without a JVM
    Multilang(multilang::MultilangOptions),
    /// Print a shell completion script
    Completions(shell::CompletionsOptions),
    /// Print the manual page
    Man,
}

/// Result of parsing the command line.
pub(crate) enum ParsedArgs {
    /// A command to run.
    Run(Box<CommandLine>),
    /// Text to print: help or the version.
    Show(String),
    /// A usage error.
    Invalid(CommandFailure),
}

/// Parses the command line.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> ParsedArgs {
    let words: Vec<OsString> = words.into_iter().collect();
    match CommandLine::try_parse_from(&words) {
        Ok(line) => ParsedArgs::Run(Box::new(line)),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                ParsedArgs::Show(error.render().to_string())
            }
            _ => ParsedArgs::Invalid(CommandFailure::usage(one_line(&error, &words))),
        },
    }
}

/// Formats a clap error on one line: message, suggestion, and the help command.
fn one_line(error: &clap::Error, words: &[OsString]) -> String {
    let text = error.render().to_string();
    let text = without_secrets(error, text);
    let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    // Missing or possible values follow on the next lines, up to the first empty one.
    let rest: Vec<&str> =
        text.lines().skip(1).map(str::trim).take_while(|l| !l.is_empty()).collect();
    let mut line = format!("{first} {}", rest.join(" ")).trim_end().to_owned();
    if let Some(better) = suggestion(error) {
        line = format!("{line} (did you mean '{better}'?)");
    }
    let root = CommandLine::command();
    let known = |word: &&str| root.find_subcommand(word).is_some();
    let named = words.iter().skip(1).filter_map(|word| word.to_str()).find(known);
    if let Some(command) = named.and_then(|named| root.find_subcommand(named)) {
        line.push_str(&verbs(error, command));
    }
    let help = named.map_or("anabranch --help".to_owned(), |c| format!("anabranch {c} --help"));
    format!("{line}; see '{help}'")
}

/// Removes a value that may contain a password, such as a database address, from a message.
fn without_secrets(error: &clap::Error, text: String) -> String {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
        return text;
    };
    let Some((scheme, _)) =
        value.split_once("//").filter(|(_, rest)| rest.contains('@') || rest.contains('?'))
    else {
        return text;
    };
    text.replace(value, &format!("{scheme}//…"))
}

/// Returns the list of a command's subcommands if an unknown one was given.
fn verbs(error: &clap::Error, command: &clap::Command) -> String {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else {
        return String::new();
    };
    let verbs: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    if error.kind() != ErrorKind::UnknownArgument || word.starts_with('-') || verbs.is_empty() {
        return String::new();
    }
    format!(" (subcommands: {})", verbs.join(", "))
}

fn suggestion(error: &clap::Error) -> Option<String> {
    let kinds =
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    kinds.iter().find_map(|kind| match error.get(*kind) {
        Some(ContextValue::String(one)) => Some(one.clone()),
        Some(ContextValue::Strings(many)) => many.first().cloned(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_wrong(line: &str, expected: &str) {
        let words = line.split(' ').map(OsString::from);
        match parse(words) {
            ParsedArgs::Invalid(failure) => assert_eq!(failure.text(), expected, "{line}"),
            _ => panic!("{line} was accepted"),
        }
    }

    #[test]
    fn a_mistake_gets_one_line_with_the_way_out() {
        check_wrong(
            "anabranch local --prot 1",
            "unexpected argument '--prot' found (did you mean '--port'?); \
             see 'anabranch local --help'",
        );
        check_wrong(
            "anabranch locla",
            "unrecognized subcommand 'locla' (did you mean 'local'?); see 'anabranch --help'",
        );
        check_wrong(
            "anabranch leases app rest --to trim",
            "unrecognized subcommand 'rest' (did you mean 'restore'?); see 'anabranch leases --help'",
        );
        check_wrong(
            "anabranch leases app frobnicate",
            "unexpected argument 'frobnicate' found (subcommands: list, show, release, reset, \
             snapshot, restore, copy); see 'anabranch leases --help'",
        );
        check_wrong(
            "anabranch local --port 99999",
            "invalid value '99999' for '--port <PORT>': 99999 is not in 0..=65535; \
             see 'anabranch local --help'",
        );
        check_wrong(
            "anabranch put orders --leases redis:x",
            "invalid value 'redis:x' for '--leases <STORE>': leases are kept in sqlite:PATH, \
             postgres:URL, dynamodb:TABLE, kcl:TABLE or memory; see 'anabranch put --help'",
        );
        check_wrong(
            "anabranch put orders --leases mysql://me:hunter2@db/shop",
            "invalid value 'mysql://…' for '--leases <STORE>': leases are kept in sqlite:PATH, \
             postgres:URL, dynamodb:TABLE, kcl:TABLE or memory; see 'anabranch put --help'",
        );
    }

    #[test]
    fn former_option_names_are_accepted() {
        for line in [
            "consume s --app a --park f --attempts 2 --parked --grace 1s",
            "consume s --app a --dead-letter f --attempts 2 --from-dead-letter --grace-period 1s",
            "put s --aggregate --marks",
            "cp stream:s f --aggregate --marks",
            "relay --stream s --marks --drain 1s",
            "relay --stream s --dedup-tags --grace-period 1s",
        ] {
            let words = format!("anabranch {line}");
            match parse(words.split(' ').map(OsString::from)) {
                ParsedArgs::Run(_) => {}
                ParsedArgs::Show(text) => panic!("{line} prints {text}"),
                ParsedArgs::Invalid(failure) => panic!("{line}: {}", failure.text()),
            }
        }
    }

    #[test]
    fn the_definition_of_the_command_line_holds_together() {
        CommandLine::command().debug_assert();
    }
}
