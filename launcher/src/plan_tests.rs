//! What the command line means on a machine that is made up.

use super::*;
use crate::cli::{Typed, parse};

fn machine() -> Machine {
    let variables =
        [("PATH", "/bin"), ("HOME", "/home/u"), ("PMI_RANK", "3"), ("SLURM_PROCID", "1"), ("SLURM_JOB_ID", "9")];
    Machine {
        environment: variables.map(|(name, value)| (name.into(), value.into())).into(),
        wdir: "/home/u/work".into(),
        program: "/opt/scela-run".into(),
        cores: 2,
        shell: ShellState { umask: 0o22, limits: vec![(libc_nofile(), 1024, 4096)], blocked: 0, ignored: 0 },
        stdout_is_terminal: false,
        stdin_in_background: false,
        session: 0x1234_5678_9abc_def0,
    }
}

fn planned(words: &str, machine: &Machine) -> Result<Plan, PlanError> {
    let words = words.split_whitespace().map(OsString::from).collect();
    let read_file = |_: &std::path::Path| Err(std::io::Error::other("none"));
    match parse(OsStr::new("scela-run"), words, &read_file) {
        Ok(Typed::Run(request)) => plan(*request, machine),
        other => panic!("{other:?}"),
    }
}

fn plan_of(words: &str) -> Plan {
    planned(words, &machine()).unwrap()
}

#[test]
fn without_np_there_is_a_rank_per_core() {
    assert_eq!(plan_of("./a").size(), 2);
    assert_eq!(plan_of("-ppn 3 ./a").size(), 3);
}

#[test]
fn commands_are_numbered_through() {
    let plan = plan_of("-n 2 ./a x y : -n 3 -wdir sub ./b");
    let first = &plan.settings.first;
    assert_eq!((first.size, first.commands.len(), first.commands[0].nprocs), (5, 2, 2));
    assert_eq!(first.command_of(pmi::Rank(1)).unwrap().0, 0);
    let (index, command) = first.command_of(pmi::Rank(2)).unwrap();
    assert_eq!((index, command.wdir.as_slice()), (1, &b"/home/u/work/sub"[..]));
    assert!(first.is_consistent());
}

#[test]
fn agents_are_as_many_as_ranks_and_descriptors_ask_for() {
    assert_eq!(plan_of("-np 8 ./a").agents(), 1);
    assert_eq!(plan_of("-np 64 ./a").agents(), 2, "one per core");
    assert_eq!(plan_of("-np 512 ./a").agents(), 4, "128 ranks each");
    assert_eq!(plan_of("-np 1024 ./a").agents(), 4, "two per core");
    assert_eq!(plan_of("-np 4000 ./a").agents(), 5, "992 ranks each, as their descriptors allow");
    assert_eq!(plan_of("-np 16000 ./a").agents(), 17, "4096 descriptors serve 992 ranks");
    assert_eq!(plan_of("-np 8 --agents-per-node 5 ./a").agents(), 5);
    let mut poor = machine();
    poor.shell.limits = vec![(libc_nofile(), 256, 256)];
    assert_eq!(planned("-np 64 ./a", &poor).unwrap().agents(), 2);
    assert_eq!(planned("-np 320 ./a", &poor).unwrap().agents(), 10);
}

#[test]
fn agents_are_one_node_unless_they_are_to_be_nodes() {
    let wire = |words: &str| plan_of(words).settings.first.mapping.wire_value().unwrap();
    assert_eq!(wire("-np 8 --agents-per-node 4 ./a"), "(vector,(0,1,8))");
    assert_eq!(wire("-np 8 --agents-per-node 4 --agents-as-nodes ./a"), "(vector,(0,4,2))");
    assert_eq!(wire("-np 8 -ppn 1 --agents-per-node 4 --agents-as-nodes ./a"), "(vector,(0,4,1),(0,4,1))");
    assert_eq!(plan_of("-np 8 -ppn 2 --agents-as-nodes ./a").agents(), 4);
}

#[test]
fn an_outer_launchers_variables_do_not_reach_the_ranks() {
    let names: Vec<_> = plan_of("./a")
        .settings
        .session
        .environment
        .iter()
        .map(|(name, _)| String::from_utf8(name.clone()).unwrap())
        .collect();
    assert_eq!(names, ["PATH", "HOME", "SLURM_JOB_ID"]);
}

#[test]
fn environment_options_add_up_and_the_commands_own_come_last() {
    let plan = plan_of("-genv A 1 -x HOME -env A 2 ./a");
    let command = &plan.settings.first.commands[0];
    let set: Vec<_> = command.set.iter().map(|(name, value)| (&name[..], &value[..])).collect();
    assert_eq!(set, [(&b"A"[..], &b"1"[..]), (b"HOME", b"/home/u"), (b"A", b"2")]);
    assert_eq!(command.inherit, Inherit::All);
    let plan = plan_of("-genvlist PATH,HOME -x NOPE ./a");
    assert_eq!(plan.settings.first.commands[0].inherit, Inherit::Names(vec![b"PATH".to_vec(), b"HOME".to_vec()]));
    assert_eq!(plan.remarks, ["'NOPE' is to be passed to the ranks, but is not set"]);
    assert_eq!(plan_of("-envnone ./a").settings.first.commands[0].inherit, Inherit::Nothing);
}

#[test]
fn standard_input_goes_to_rank_0_unless_told_otherwise() {
    let takers = |words: &str| plan_of(words).settings.first.stdin.to_string();
    assert_eq!(takers("-np 4 ./a"), "0");
    assert_eq!(takers("-np 4 -s all ./a"), "0-3");
    assert_eq!(takers("-np 4 -s 1,3 ./a"), "1,3");
    assert_eq!(takers("-np 4 -s ./input ./a"), "0-3");
    assert!(plan_of("-np 4 -s none ./a").input.is_none());
    let background = Machine { stdin_in_background: true, ..machine() };
    assert!(planned("-np 4 ./a", &background).unwrap().input.is_none());
    assert_eq!(
        planned("-np 2 -s 1-2 ./a", &machine()).unwrap_err().to_string(),
        "standard input is to go to rank 2, but the ranks are 0 to 1"
    );
}

#[test]
fn lines_are_held_unless_somebody_watches() {
    let holds = |words: &str, terminal| {
        planned(words, &Machine { stdout_is_terminal: terminal, ..machine() }).unwrap().settings.session.hold_lines
    };
    assert!(holds("-np 4 ./a", false));
    assert!(!holds("-np 4 ./a", true));
    assert!(!holds("-np 1 ./a", false));
}

#[test]
fn too_many_ranks_and_too_many_per_node_are_told() {
    let error = planned("-np 16777216 ./a : -np 1 ./a", &machine()).unwrap_err();
    assert_eq!(error.to_string(), "16777217 ranks are more than a job can have (16777216)");
    assert_eq!(
        plan_of("-np 4 -ppn 2 ./a").remarks,
        ["4 ranks are more than -ppn 2 on 1 node(s) makes; they are started all the same"]
    );
    assert!(plan_of("-np 2 -ppn 2 ./a").remarks.is_empty());
}

#[test]
fn the_demo_is_this_program_itself() {
    let plan = plan_of("-np 3 --demo");
    let command = &plan.settings.first.commands[0];
    assert_eq!((command.program.as_slice(), command.args.len(), plan.demo), (&b"/opt/scela-run"[..], 1, true));
}
