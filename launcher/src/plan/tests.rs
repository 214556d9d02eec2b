//! Tests of plans for typed command lines, on a fictitious machine.

use std::ffi::OsStr;

use nla::core::{AgentId, Inherit};

use super::agent_layout::libc_nofile;
use super::process_limits::MemoryLimit;
use super::*;
use crate::cli::{Typed, parse};
use crate::cluster::node_list::HostOptions;
use crate::cluster::placement::MapBy;
use nla::sys::{ShellState, TaskLimit, TaskLimitPlace};

pub(super) fn machine() -> Machine {
    let variables =
        [("PATH", "/bin"), ("HOME", "/home/u"), ("PMI_RANK", "3"), ("SLURM_PROCID", "1"), ("SLURM_JOB_ID", "9")];
    Machine {
        environment: variables.map(|(name, value)| (name.into(), value.into())).into(),
        wdir: "/home/u/work".into(),
        program: "/opt/scela-run".into(),
        cores: 2,
        parts: |_| 2,
        shell: ShellState {
            umask: 0o22,
            limits: vec![(libc_nofile(), 1024, 4096)],
            blocked: 0,
            ignored: 0,
            bounds_hard: false,
        },
        stdout_is_terminal: false,
        stdin_in_background: false,
        task_limits: |_| Vec::new(),
        memory_limits: |_| Vec::new(),
        session: 0x1234_5678_9abc_def0,
    }
}

pub(super) fn planned(words: &str, machine: &Machine) -> Result<Plan, Refusal> {
    let words = words.split_whitespace().map(OsString::from).collect();
    let read_file = |_: &std::path::Path| Err(std::io::Error::other("none"));
    match parse(OsStr::new("scela-run"), words, &read_file) {
        Ok(Typed::Run(request)) => plan(&request, machine, &crate::cluster::node_list::NodeList::HERE),
        other => panic!("{other:?}"),
    }
}

fn plan_of(words: &str) -> Plan {
    planned(words, &machine()).unwrap()
}

#[test]
fn without_np_each_core_gets_a_rank() {
    assert_eq!(plan_of("./a").size(), 2);
    assert_eq!(plan_of("-ppn 3 ./a").size(), 3);
}

#[test]
fn ranks_are_numbered_across_commands() {
    let plan = plan_of("-n 2 ./a x y : -n 3 -wdir sub ./b");
    let first = &plan.settings.first;
    assert_eq!((first.size, first.commands.len(), first.commands[0].nprocs), (5, 2, 2));
    assert_eq!(first.command_of(pmi::Rank(1)).unwrap().0, 0);
    let (index, command) = first.command_of(pmi::Rank(2)).unwrap();
    assert_eq!((index, command.wdir.as_slice()), (1, &b"/home/u/work/sub"[..]));
    assert!(first.is_consistent());
}

#[test]
fn the_number_of_agents_follows_from_ranks_and_descriptors() {
    assert_eq!(plan_of("-np 8 ./a").agents(), 1);
    assert_eq!(plan_of("-np 64 ./a").agents(), 2, "one per core");
    assert_eq!(plan_of("-np 512 ./a").agents(), 4, "128 ranks each");
    assert_eq!(plan_of("-np 1024 ./a").agents(), 4, "two per core");
    assert_eq!(plan_of("-np 4000 ./a").agents(), 4, "1,000 ranks each");
    assert_eq!(plan_of("-np 16000 ./a").agents(), 16);
    assert_eq!(plan_of("-np 8 --agents-per-node 5 ./a").agents(), 5);
    let mut poor = machine();
    poor.shell.limits = vec![(libc_nofile(), 256, 256)];
    assert_eq!(planned("-np 64 ./a", &poor).unwrap().agents(), 2);
    assert_eq!(planned("-np 320 ./a", &poor).unwrap().agents(), 9);
}

#[test]
fn this_machine_alone_has_no_spare_nodes() {
    let error = planned("-np 4 --agents-per-node 4 --spares 1 ./a", &machine()).unwrap_err();
    let text = "option '--spares': 1 node is asked for; besides the one that must run, there are 0";
    assert_eq!(error.to_string(), text);
    assert!(planned("-np 4 --agents-per-node 4 --agents-as-nodes --spares 3 ./a", &machine()).is_ok());
    assert!(planned("-np 4 --agents-per-node 4 --agents-as-nodes --spares 4 ./a", &machine()).is_err());
}

#[test]
fn local_agents_are_one_node_unless_agents_as_nodes_is_typed() {
    let wire = |words: &str| plan_of(words).settings.first.mapping.wire_value().unwrap();
    assert_eq!(wire("-np 8 --agents-per-node 4 ./a"), "(vector,(0,1,8))");
    assert_eq!(wire("-np 8 --agents-per-node 4 --agents-as-nodes ./a"), "(vector,(0,4,2))");
    assert_eq!(wire("-np 8 -ppn 1 --agents-per-node 4 --agents-as-nodes ./a"), "(vector,(0,4,1),(0,4,1))");
    assert_eq!(plan_of("-np 8 -ppn 2 --agents-as-nodes ./a").agents(), 4);
}

#[test]
fn variables_of_an_outer_launcher_do_not_reach_the_ranks() {
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
fn environment_options_of_a_command_follow_the_global_ones() {
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
fn standard_input_goes_to_rank_0_by_default() {
    let readers = |words: &str| plan_of(words).settings.first.stdin.to_string();
    assert_eq!(readers("-np 4 ./a"), "0");
    assert_eq!(readers("-np 4 -s all ./a"), "0-3");
    assert_eq!(readers("-np 4 -s 1,3 ./a"), "1,3");
    assert_eq!(readers("-np 4 -s ./input ./a"), "0-3");
    assert!(plan_of("-np 4 -s none ./a").input.is_none());
    let background = Machine { stdin_in_background: true, ..machine() };
    assert!(planned("-np 4 ./a", &background).unwrap().input.is_none());
    assert_eq!(
        planned("-np 2 -s 1-2 ./a", &machine()).unwrap_err().to_string(),
        "standard input is to go to rank 2, but the ranks are 0 to 1"
    );
}

#[test]
fn lines_are_buffered_unless_stdout_is_a_terminal() {
    let holds = |words: &str, terminal| {
        planned(words, &Machine { stdout_is_terminal: terminal, ..machine() }).unwrap().settings.session.hold_lines
    };
    assert!(holds("-np 4 ./a", false));
    assert!(!holds("-np 4 ./a", true));
    assert!(!holds("-np 1 ./a", false));
}

#[test]
fn too_many_ranks_are_refused_and_too_many_per_node_are_noted() {
    let error = planned("-np 16777216 ./a : -np 1 ./a", &machine()).unwrap_err();
    assert_eq!(error.to_string(), "16777217 ranks are more than a job can have (16777216)");
    assert_eq!(
        plan_of("-np 4 -ppn 2 ./a").remarks,
        ["-ppn 2 on 1 node allows fewer than 4 ranks; all are started anyway"]
    );
    assert!(plan_of("-np 2 -ppn 2 ./a").remarks.is_empty());
}

#[test]
fn ranks_of_the_demo_run_this_program() {
    let plan = plan_of("-np 3 --demo");
    let command = &plan.settings.first.commands[0];
    assert_eq!((command.program.as_slice(), command.args.len(), plan.demo), (&b"/opt/scela-run"[..], 1, true));
}

/// Returns the node list of a typed list.
fn node_list_of(list: &str) -> NodeList {
    let options = HostOptions { sources: vec![HostSource::List(list.into())], ..HostOptions::default() };
    crate::cluster::node_list::find(&options, &crate::cluster::system::fake::Fake::default(), &mut Vec::new()).unwrap()
}

/// Makes a plan for a command line and a typed list of nodes. `change` sets further host options.
fn planned_on(words: &str, list: &str, change: impl Fn(&mut HostOptions)) -> Result<Plan, Refusal> {
    let words = words.split_whitespace().map(OsString::from).collect();
    let read_file = |_: &std::path::Path| Err(std::io::Error::other("none"));
    let Ok(Typed::Run(mut request)) = parse(OsStr::new("scela-run"), words, &read_file) else {
        panic!("not a session");
    };
    change(&mut request.options.hosts);
    plan(&request, &machine(), &node_list_of(list))
}

fn plan_on(words: &str, list: &str) -> Plan {
    planned_on(words, list, |_| ()).unwrap()
}

/// Returns for each agent `ID@INDEX/NODE=RANKS`: its number, the index into the node list, the number of its node, and
/// its ranks.
fn layout(plan: &Plan) -> String {
    let first = &plan.settings.first;
    assert!(first.is_consistent());
    assert_eq!((plan.node_of_agent.len(), plan.settings.nodes.len()), (plan.agents() as usize, plan.agents() as usize));
    let one = |((id, node), index): ((&AgentId, &u32), &usize)| {
        let ranks = first.placement.iter().find(|(agent, _)| agent == id).map(|(_, ranks)| ranks.to_string());
        format!("{}@{index}/{node}={}", id.0, ranks.unwrap_or_default())
    };
    plan.settings.nodes.iter().zip(&plan.node_of_agent).map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn each_node_with_ranks_has_an_agent() {
    let plan = plan_on("-np 6 ./a", "a:4,b:4,c:4");
    assert_eq!(layout(&plan), "1@0/0=0-3 2@1/1=4-5");
    assert_eq!(plan.settings.first.mapping.wire_value().unwrap(), "(vector,(0,1,4),(1,1,2))");
    assert_eq!((plan.settings.first.universe, plan.settings.first.owners.len()), (-1, 0));
    let plan = plan_on("-np 512 ./a", "n[1-32]");
    assert_eq!((plan.agents(), plan.node_of_agent[31], plan.settings.first.universe), (32, 31, -1));
    assert_eq!(plan.settings.first.mapping.wire_value().unwrap(), "(vector,(0,32,16))");
}

#[test]
fn the_universe_is_known_if_something_bounds_it() {
    let universe = |words: &str, hosts: &str| plan_on(words, hosts).settings.first.universe;
    assert_eq!(universe("-np 6 -usize 100 ./a", "a:4,b:4"), 100);
    assert_eq!(universe("-np 6 -usize system ./a", "a:4,b:4"), 8);
    assert_eq!(universe("-np 6 -usize SYSTEM ./a", "a:4,b"), -1, "the slots of one host are unknown");
    assert_eq!(universe("-np 6 -usize INFINITE ./a", "a:4,b:4"), -1);
}

#[test]
fn a_node_with_many_ranks_has_several_agents() {
    let plan = plan_on("-np 2001 ./a", "a:1001,b:1000");
    assert_eq!(layout(&plan), "1@0/0=0-499 2@0/0=500-1000 3@1/1=1001-2000");
    assert_eq!(plan.settings.first.owners, [(AgentId(2), AgentId(1))]);
    let plan = plan_on("-np 5 --agents-per-node 2 ./a", "a:4,b:4");
    assert_eq!(layout(&plan), "1@0/0=0-1 2@0/0=2-3 3@1/1= 4@1/1=4");
    let error = planned_on("-np 4000000 --agents-per-node 1024 ./a", "n[1-4096]", |_| ()).unwrap_err();
    assert_eq!(error.to_string(), "4194304 agents are more than a session can have (1048576)");
}

#[test]
fn cyclic_ranks_are_split_among_the_agents_of_a_node_in_order() {
    let cyclic = |hosts: &mut HostOptions| hosts.map_by = MapBy::Node;
    let plan = planned_on("-np 8 --agents-per-node 2 ./a", "a,b", cyclic).unwrap();
    assert_eq!(layout(&plan), "1@0/0=0,2 2@0/0=4,6 3@1/1=1,3 4@1/1=5,7");
    assert_eq!(plan.settings.first.mapping.wire_value().unwrap(), "(vector,(0,2,1),(0,2,1),(0,2,1),(0,2,1))");
}

#[test]
fn a_mapping_with_more_blocks_than_agents_accept_is_refused() {
    let cyclic = |hosts: &mut HostOptions| hosts.map_by = MapBy::Node;
    assert!(planned_on("-np 2097152 ./a", "a,b", cyclic).is_ok());
    let error = planned_on("-np 2097153 ./a", "a,b", cyclic).unwrap_err();
    assert_eq!(
        error.to_string(),
        "neighbouring ranks are on different nodes so often that the map exceeds the limit of agents"
    );
}

#[test]
fn nodes_are_numbered_in_the_order_of_their_first_ranks() {
    let map = |text: &'static str| move |hosts: &mut HostOptions| hosts.rankmap = Some(text.into());
    let plan = planned_on("./a", "a,b,c,d", map("3,3,0,2*3")).unwrap();
    assert_eq!(layout(&plan), "1@3/0=0-1,3-4 2@0/1=2");
    assert_eq!(plan.settings.first.mapping.wire_value().unwrap(), "(vector,(0,1,2),(1,1,1),(0,1,2))");
    let error = planned_on("-np 2 ./a", "a,b", map("0,2")).unwrap_err();
    assert_eq!(error.to_string(), "the rank map names node 2, and the nodes are 0 to 1");
    assert_eq!(planned_on("-np 2 ./a", "localhost", map("0,0")).unwrap().size(), 2);
    let error = planned_on("./a", "localhost", map("0,1")).unwrap_err();
    assert_eq!(error.to_string(), "the rank map names node 1, and the nodes are 0 to 0");
}

#[test]
fn without_np_each_slot_gets_a_rank() {
    assert_eq!(plan_on("./a", "a:4,b:2").size(), 6);
    assert_eq!(plan_on("./a", "a,b,c").size(), 3);
    assert_eq!(plan_on("-ppn 3 ./a", "a,b").size(), 6);
    assert_eq!(plan_on("./a", "localhost:5").size(), 5);
    let sizes = |words: &str| -> Vec<u32> {
        plan_on(words, "a:4,b:4").settings.first.commands.iter().map(|command| command.nprocs).collect()
    };
    assert_eq!(sizes("-np 1 ./a : ./b"), [1, 7]);
    assert_eq!(sizes("-np 2 ./a : ./b : ./c"), [2, 3, 3]);
    assert_eq!(sizes("-np 9 ./a : ./b"), [9, 1]);

    let job = NodeList::Named {
        nodes: node_list_of("a:4,b:4").nodes().to_vec(),
        allocation: Some(crate::cluster::allocation::Allocation {
            manager: crate::cluster::manager::Manager::Slurm,
            id: "1".into(),
            nodes: Vec::new(),
            ranks: Some(6),
            found_by: "SLURM_JOB_NODELIST",
        }),
    };
    let size = |words: &str| {
        let words = words.split_whitespace().map(OsString::from).collect();
        let Ok(Typed::Run(request)) = parse(OsStr::new("scela-run"), words, &|_| panic!("no test reads a configfile"))
        else {
            panic!("not a session");
        };
        plan(&request, &machine(), &job).unwrap().size()
    };
    assert_eq!((size("./a"), size("-ppn 4 ./a"), size("-np 3 ./a")), (6, 8, 3));
}

#[test]
fn oversubscription_is_noted_and_left_out_nodes_are_replaced() {
    let expected = "64 ranks on 8 slots: nodes are oversubscribed";
    assert_eq!(plan_on("-np 64 ./a", "a:4,b:4").remarks, [expected]);
    assert_eq!(plan_on("-np 64 ./a", "localhost:8").remarks, [expected]);
    assert!(plan_on("-np 64 ./a", "a,b").remarks.is_empty());
    let words = "-np 4 ./a".split_whitespace().map(OsString::from).collect();
    let Ok(Typed::Run(request)) = parse(OsStr::new("scela-run"), words, &|_| panic!("no test reads a configfile"))
    else {
        panic!("not a session");
    };
    let node_list = node_list_of("a:2,b:2,c:2");
    let again = |bad: &[usize]| plan(&request, &machine(), &node_list.without(&bad.iter().copied().collect()));
    assert_eq!(layout(&again(&[]).unwrap()), "1@0/0=0-1 2@1/1=2-3");
    assert_eq!(layout(&again(&[1]).unwrap()), "1@0/0=0-1 2@1/1=2-3");
    assert_eq!(layout(&again(&[0, 1]).unwrap()), "1@0/0=0-3");
    assert_eq!(again(&[0, 1, 2]).unwrap_err().to_string(), "no node is left to run on");
}

#[test]
fn a_job_keeps_its_size_when_nodes_are_left_out() {
    let Ok(Typed::Run(request)) =
        parse(OsStr::new("scela-run"), vec!["./a".into()], &|_| panic!("no test reads a configfile"))
    else {
        panic!("not a session");
    };
    let node_list = node_list_of("a:2,b:2,c:2");
    let request = plan(&request, &machine(), &node_list).unwrap().with_sizes(&request);
    let plan = plan(&request, &machine(), &node_list.without(&[1].into())).unwrap();
    assert_eq!(layout(&plan), "1@0/0=0-2 2@1/1=3-5");
    assert_eq!(plan.remarks, ["6 ranks on 4 slots: nodes are oversubscribed"]);
}

#[test]
fn contradicting_options_are_refused() {
    let error = planned_on("-np 4 --agents-as-nodes ./a", "a,b", |_| ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--agents-as-nodes plays several nodes on this machine, and cannot be used with hosts"
    );
    let per_node = |hosts: &mut HostOptions| hosts.map_by = MapBy::PerNode(2);
    let error = planned_on("-ppn 3 ./a", "a,b", per_node).unwrap_err();
    assert_eq!(error.to_string(), "-ppn 3 and --map-by ppr:2:node do not agree");
    assert_eq!(layout(&planned_on("-ppn 2 ./a", "a,b", per_node).unwrap()), "1@0/0=0-1 2@1/1=2-3");
}

#[test]
fn ranks_get_no_input_if_standard_input_lists_the_hosts() {
    let from_input = |hosts: &mut HostOptions| hosts.sources = vec![HostSource::File("-".into())];
    assert!(planned_on("-np 4 ./a", "a,b", from_input).unwrap().input.is_none());
    assert!(plan_on("-np 4 ./a", "a,b").input.is_some());
}

/// Returns the fictitious machine with this hard limit on open files.
fn with_open_files(files: u64) -> Machine {
    let shell = ShellState { limits: vec![(libc_nofile(), files, files)], ..machine().shell };
    Machine { shell, ..machine() }
}

#[test]
fn many_agents_on_one_machine_have_a_longer_dead_time() {
    let seconds = |words: &str| {
        let plan = plan_of(words);
        assert_eq!(plan.settings.session.dead_time, plan.options.liveness().dead_time);
        plan.options.liveness().dead_time.as_secs_f64()
    };
    assert_eq!(seconds("-np 8 ./a"), 20.0);
    assert_eq!(seconds("-np 8 --agents-per-node 8 ./a"), 40.0);
    assert_eq!(seconds("-np 64 --agents-per-node 64 ./a"), 120.0);
    assert_eq!(seconds("-np 8 --agents-per-node 8 --dead-time 7 ./a"), 7.0);
    assert_eq!(seconds("-np 8 --on-failure continue ./a"), 5.0);
    assert_eq!(seconds("-np 8 --agents-per-node 8 --on-failure continue ./a"), 40.0);
    let remote = planned_on("-np 8 --agents-per-node 8 ./a", "n1", |_| {}).unwrap();
    assert_eq!(remote.options.liveness().dead_time.as_secs(), 20);
}

#[test]
fn more_processes_than_the_machine_allows_are_refused() {
    let limits = |_| {
        let limit = |place, max| TaskLimit { place, max, others: 0 };
        vec![limit(TaskLimitPlace::Kernel("pid_max"), 32_768), limit(TaskLimitPlace::User { hard: u64::MAX }, 108)]
    };
    let small = Machine { task_limits: limits, ..machine() };
    let error = planned("-np 99 ./a", &small).unwrap_err();
    let text = "99 ranks and 1 agent do not fit on this machine: the job needs 109 processes and threads, with those of agents \
                and guardians, and ulimit -u allows 108";
    assert_eq!(error.to_string(), text);
    assert!(
        error.hint().starts_with("'ulimit -u 109' lets it start, with 1 agent; or start fewer ranks"),
        "{}",
        error.hint()
    );
    assert_eq!(
        planned("-np 98 ./a", &small).unwrap().agents(),
        1,
        "two agents, as on other machines, would be too many processes"
    );
    assert_eq!(planned("-np 80 ./a", &small).unwrap().agents(), 2);
}

#[test]
fn more_ranks_than_the_memory_holds_are_refused() {
    let limits =
        |_| vec![MemoryLimit { name: "/sys/fs/cgroup/memory.max".to_owned(), left: 101 << 20, is_of_cgroup: true }];
    let small = Machine { memory_limits: limits, ..machine() };
    assert!(planned("-np 1024 ./a", &small).is_ok());
    let error = planned("-np 1200 ./a", &small).unwrap_err();
    let expected = "do not fit on this machine: even the smallest programs need 116 MiB of memory, 96 KiB each, and \
                    /sys/fs/cgroup/memory.max leaves 101 MiB";
    assert!(error.to_string().ends_with(expected), "{error}");
}

#[test]
fn low_limits_on_open_files_give_more_agents_until_the_launcher_has_too_few() {
    let limited = |files: u64| planned("-np 64 ./a", &with_open_files(files));
    let agents = |files: u64| limited(files).expect("it fits").agents();
    assert_eq!([256, 128].map(agents), [2, 6]);
    let error = limited(64).unwrap_err();
    let expected = "64 ranks and 22 agents do not fit on this machine: scela-run needs 72 open files, and the hard limit (ulimit -Hn) \
                    allows 64";
    assert_eq!(error.to_string(), expected);
    assert!(error.hint().starts_with("'ulimit -n 72' "), "{}", error.hint());
    let one = |files: u64| planned("-np 1 ./a", &with_open_files(files));
    assert!(one(58).is_ok());
    let error = one(57).unwrap_err();
    assert_eq!(
        error.to_string(),
        "1 rank and 1 agent do not fit on this machine: an agent needs 58 open files, and the hard limit (ulimit -Hn) allows 57"
    );
}
