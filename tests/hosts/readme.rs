//! Runs the commands of README.md's section about clusters, exactly as they are printed there.

use std::path::Path;

use tests::{Cluster, Outcome, Run, Slurm};

use crate::break_five;
use crate::mpich::{compile, mpich};
use crate::slurm::or_skip;

/// Returns the text between two lines.
fn between<'a>(text: &'a str, first: &str, last: &str) -> &'a str {
    let (_, rest) = text.split_once(first).unwrap();
    rest.split_once(last).unwrap().0
}

fn readme() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).unwrap()
}

/// Returns the commands of the section about clusters, each with the output shown for it.
fn commands() -> Vec<(String, String)> {
    let text = readme();
    let section = between(&text, "\n### On a cluster\n", "\n### ");
    let blocks = section.split("```console\n").skip(1).map(|block| block.split_once("```").unwrap().0);
    let commands = blocks.flat_map(|block| block.split("$ ").skip(1));
    commands.map(|command| command.split_once('\n').unwrap()).map(|(c, o)| (c.to_owned(), o.to_owned())).collect()
}

/// Runs a command of README.md.
fn run_command(run: Run, command: &str) -> Outcome {
    // The only quotes in these commands surround whole words.
    let mut words: Vec<String> = command.split(' ').map(|word| word.trim_matches('\'').to_owned()).collect();
    let program = words.pop().unwrap();
    assert_eq!(words.remove(0), "scela-run");
    run.args(words).program(vec![program.into()]).run()
}

/// Asserts that `np` ranks met on these nodes.
#[track_caller]
fn assert_met(outcome: &Outcome, np: usize, nodes: &[&str]) {
    outcome.has_code(0);
    let sum = np * (np - 1) / 2;
    let lines: Vec<String> = outcome.sorted_lines();
    let right = |rank: usize| {
        let (begin, end) = (format!("rank {rank} of {np} on "), format!(": the ranks add up to {sum}"));
        lines.iter().any(|line| line.starts_with(&begin) && line.ends_with(&end))
    };
    outcome.check(lines.len() == np && (0..np).all(right), "each rank should print the sum over all ranks");
    for node in nodes {
        outcome.check(lines.iter().any(|line| line.contains(&format!(" on {node}:"))), node);
    }
}

fn compile_hello(directory: &Path) -> bool {
    let source = directory.join("hello.c");
    let text = readme();
    std::fs::write(&source, between(&text, "`hello.c`:\n\n```c\n", "```")).unwrap();
    compile(&source, &directory.join("hello"))
}

#[test]
fn the_commands_over_ssh_work() {
    let Some(cluster) = Cluster::new_or_skip(8) else { return };
    let shared = cluster.shared();
    if !compile_hello(&shared) {
        return;
    }
    std::fs::write(shared.join("hosts"), "node[001-004]\n").unwrap();
    let run = |cluster: &Cluster| mpich().on(cluster).directory(&shared);
    let over_ssh: Vec<_> = commands().into_iter().filter(|(command, _)| command.starts_with("scela-run ")).collect();
    assert_eq!(over_ssh.len(), 3, "{over_ssh:?}");
    for (command, said) in over_ssh {
        if said.is_empty() {
            assert_met(&run_command(run(&cluster), &command), 16, &["node001", "node002", "node003", "node004"]);
            continue;
        }
        break_five(&cluster);
        let outcome =
            run_command(run(&cluster), &format!("scela-run --start-timeout 12 {}", &command["scela-run ".len()..]));
        assert_met(&outcome, 16, &["node001", "node007", "node008"]);
        for line in said.lines().take_while(|line| line.trim() != "...") {
            outcome.says(line);
        }
    }
}

#[test]
fn the_command_in_an_allocation_works() {
    let Some(slurm) = or_skip(Slurm::with_nodes(4)) else { return };
    let directory = tempfile::tempdir().unwrap();
    if !compile_hello(directory.path()) {
        return;
    }
    let command =
        commands().into_iter().find_map(|(command, _)| Some(command.strip_prefix("salloc -N 4 ")?.to_owned()));
    let allocation = slurm.allocate_evenly(4, 2);
    let run = mpich().envs(allocation.environment()).directory(directory.path());
    assert_met(&run_command(run, &command.unwrap()), 8, &[]);
}
