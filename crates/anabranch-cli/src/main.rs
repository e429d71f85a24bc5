//! The `anabranch` command.

mod args;
mod failure;
mod connection;
mod output;
mod table;
mod shell_word;
mod signals;
mod time_spec;
mod line;
mod printer;
mod input;
mod notices;
mod commands;

use args::{CliCommand, CommandLine, ParsedArgs};
use failure::CommandFailure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let line = match args::parse(std::env::args_os()) {
        ParsedArgs::Run(line) => *line,
        ParsedArgs::Show(text) => {
            output::show(&text);
            return end(output::judge(Ok(())));
        }
        ParsedArgs::Invalid(failure) => return failure.report(),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return CommandFailure::result(format!("the async runtime can't be started: {error}"))
                .report();
        }
    };
    let result = runtime.block_on(Box::pin(run(line)));
    // A thread may be blocked on input that never arrives and must not delay the exit.
    runtime.shutdown_background();
    end(output::judge(result))
}

fn end(result: Result<(), CommandFailure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

async fn run(line: CommandLine) -> Result<(), CommandFailure> {
    let connection = line.connection;
    match line.command {
        CliCommand::Local(options) => commands::local::run(options).await,
        CliCommand::Demo(options) => Box::pin(commands::demo::run(options)).await,
        CliCommand::DemoWorker(options) => commands::demo::worker::run(options).await,
        CliCommand::Put(options) => commands::put::run(options, &connection.resolve()?).await,
        CliCommand::Tail(options) => commands::tail::run(options, &connection.resolve()?).await,
        CliCommand::Cp(options) => commands::cp::run(options, &connection.resolve()?).await,
        CliCommand::Consume(options) => {
            Box::pin(commands::consume::run(options, &connection.resolve()?)).await
        }
        CliCommand::Redrive(options) => Box::pin(commands::redrive::run(options)).await,
        CliCommand::Shards(options) => commands::shards::run(options, &connection.resolve()?).await,
        CliCommand::Leases(options) => commands::leases::run(options, &connection.resolve()?).await,
        CliCommand::Doctor(options) => commands::doctor::run(options, &connection.resolve()?).await,
        CliCommand::Relay(options) => commands::relay::run(options, &connection.resolve()?).await,
        CliCommand::Multilang(options) => commands::multilang::run(options).await,
        CliCommand::Completions(options) => {
            commands::shell::completions(&options);
            Ok(())
        }
        CliCommand::Man => commands::shell::manual(),
    }
}
