//! `anabranch completions SHELL` and `anabranch man`, generated from the command line definition.

use crate::args::CommandLine;
use crate::failure::CommandFailure;
use crate::output;
use clap::CommandFactory;

/// Options of `anabranch completions`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
bash: anabranch completions bash > ~/.local/share/bash-completion/completions/anabranch
zsh:  anabranch completions zsh > a folder of your $fpath, as _anabranch
fish: anabranch completions fish > ~/.config/fish/completions/anabranch.fish")]
pub(crate) struct CompletionsOptions {
    /// Shell to generate for
    shell: clap_complete::Shell,
}

/// Prints the completion script.
pub(crate) fn completions(options: &CompletionsOptions) {
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut CommandLine::command(), "anabranch", &mut text);
    output::show(&String::from_utf8_lossy(&text));
}

/// Prints the manual page: first the main command, then each subcommand.
pub(crate) fn manual() -> Result<(), CommandFailure> {
    let mut text = Vec::new();
    let mut root = CommandLine::command();
    root.build();
    let failed =
        |error| CommandFailure::result(format!("the manual page can't be generated: {error}"));
    clap_mangen::Man::new(root.clone()).render(&mut text).map_err(failed)?;
    for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
        let man = clap_mangen::Man::new(command.clone());
        man.render_name_section(&mut text).map_err(failed)?;
        man.render_synopsis_section(&mut text).map_err(failed)?;
        man.render_options_section(&mut text).map_err(failed)?;
    }
    output::show(&String::from_utf8_lossy(&text));
    Ok(())
}
