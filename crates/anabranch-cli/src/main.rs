//! The `anabranch` command.

mod args;
mod failure;
mod commands;

use args::{Command, Parsed};
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = match args::parse(std::env::args_os()) {
        Parsed::Run(command) => command,
        Parsed::Show(text) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Parsed::Wrong(failure) => return failure.report(),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failure::Failure::result(format!("no runtime: {error}")).report(),
    };
    let result = runtime.block_on(async {
        match command {
            Command::Local(options) => commands::local::run(options).await,
            Command::Demo(options) => Box::pin(commands::demo::run(options)).await,
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
