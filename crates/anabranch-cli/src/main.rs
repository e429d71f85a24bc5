//! The `anabranch` command.

mod args;
mod failure;
mod connection;
mod output;
mod table;
mod shell_word;
mod stop;
mod moment;
mod line;
mod printer;
mod input;
mod notice;
mod commands;

use args::{Command, Line, Parsed};
use failure::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let line = match args::parse(std::env::args_os()) {
        Parsed::Run(line) => *line,
        Parsed::Show(text) => {
            output::show(&text);
            return end(output::judge(Ok(())));
        }
        Parsed::Wrong(failure) => return failure.report(),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::result(format!("no runtime: {error}")).report(),
    };
    let result = runtime.block_on(Box::pin(run(line)));
    // A thread may wait for input that never comes, and must not hold up the end.
    runtime.shutdown_background();
    end(output::judge(result))
}

fn end(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

async fn run(line: Line) -> Result<(), Failure> {
    let connection = line.connection;
    match line.command {
        Command::Local(options) => commands::local::run(options).await,
        Command::Demo(options) => Box::pin(commands::demo::run(options)).await,
        Command::DemoWorker(options) => commands::demo::worker::run(options).await,
        Command::Put(options) => commands::put::run(options, &connection.settle()?).await,
        Command::Tail(options) => commands::tail::run(options, &connection.settle()?).await,
        Command::Cp(options) => commands::cp::run(options, &connection.settle()?).await,
        Command::Consume(options) => {
            Box::pin(commands::consume::run(options, &connection.settle()?)).await
        }
        Command::Redrive(options) => Box::pin(commands::redrive::run(options)).await,
        Command::Shards(options) => commands::shards::run(options, &connection.settle()?).await,
        Command::Leases(options) => commands::leases::run(options, &connection.settle()?).await,
        Command::Doctor(options) => commands::doctor::run(options, &connection.settle()?).await,
        Command::Relay(options) => commands::relay::run(options, &connection.settle()?).await,
        Command::Multilang(options) => commands::multilang::run(options).await,
        Command::Completions(options) => {
            commands::shell::completions(&options);
            Ok(())
        }
        Command::Man => commands::shell::manual(),
    }
}
