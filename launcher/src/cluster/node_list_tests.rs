//! Fields of system that are made up.

use super::*;
use crate::cluster::manager::ManagerChoice;
use crate::cluster::system::fake::Fake;

fn hosts(list: &str) -> HostOptions {
    HostOptions { sources: vec![HostSource::List(list.into())], ..HostOptions::default() }
}

fn job() -> Fake {
    Fake::with(&[
        ("SLURM_JOB_ID", "123"),
        ("SLURM_JOB_NODELIST", "n[1-4]"),
        ("SLURM_TASKS_PER_NODE", "8(x4)"),
        ("SLURM_NTASKS", "30"),
    ])
}

/// Returns the node list as text, and the remarks.
fn found(options: &HostOptions, fake: &Fake) -> Result<(String, Vec<String>), String> {
    let mut remarks = Vec::new();
    let field = find(options, fake, &mut remarks).map_err(|error| {
        assert!(!error.hint().is_empty());
        error.to_string()
    })?;
    let number = |mark: &str, number: Option<u32>| number.map(|number| format!("{mark}{number}")).unwrap_or_default();
    let words = match &field {
        NodeList::Local { slots, max_slots, .. } => format!("here{}{}", number(":", *slots), number("/", *max_slots)),
        NodeList::Named { nodes, allocation } => {
            let node = |node: &Node| {
                let user = node.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
                format!("{user}{}{}{}", node.name, number(":", node.slots), number("/", node.max_slots))
            };
            let job = allocation.as_ref().map(|job| format!(" of {}{}", job.id, number(" for ", job.ranks)));
            format!("{}{}", nodes.iter().map(node).collect::<Vec<_>>().join(" "), job.unwrap_or_default())
        }
    };
    Ok((words, remarks))
}

#[track_caller]
fn check(options: &HostOptions, fake: &Fake, expected: &str) {
    assert_eq!(found(options, fake), Ok((expected.to_owned(), Vec::new())));
}

#[track_caller]
fn check_error(options: &HostOptions, fake: &Fake, expected: &str) {
    assert_eq!(found(options, fake), Err(expected.to_owned()));
}

#[test]
fn without_hosts_and_job_this_machine_is_the_only_node() {
    let nothing = HostOptions::default();
    check(&nothing, &Fake::default(), "here");
    let ignored = HostOptions { manager: ManagerChoice::None, ..HostOptions::default() };
    check(&ignored, &job(), "here");
    check(&HostOptions { exclude: Some("n7".into()), ..nothing.clone() }, &Fake::default(), "here");
    check_error(
        &HostOptions { select: Some("1".into()), ..nothing },
        &Fake::default(),
        "--select chooses from a list of hosts, and there is none",
    );
}

#[test]
fn lists_and_files_are_joined_in_order() {
    let fake = Fake::default().file("hosts", "# ours\nb:2\nc slots=2 max-slots=4\n").file("-", "d\n");
    let sources = vec![
        HostSource::File("hosts".into()),
        HostSource::List("a:1,b:1,ada@e[1-2]".into()),
        HostSource::File("-".into()),
    ];
    check(&HostOptions { sources, ..HostOptions::default() }, &fake, "b:3 c:2/4 a:1 ada@e1 ada@e2 d");
}

#[test]
fn names_of_this_machine_are_recognized() {
    check(&hosts("localhost"), &Fake::default(), "here");
    check(&hosts("localhost:4"), &job(), "here:4");
    check(&hosts("127.0.0.1:2,[::1]:2"), &Fake::default(), "here:4");
    check(&hosts("localhost,n1"), &Fake::default(), "localhost n1");
    check(&hosts("ada@localhost"), &Fake::default(), "ada@localhost");
    let broken = job().without("SLURM_JOB_NODELIST");
    check(&hosts("localhost"), &broken, "here");
    let file = Fake::default().file("hosts", "localhost slots=2 max-slots=3\n");
    let sources = vec![HostSource::File("hosts".into())];
    check(&HostOptions { sources, ..HostOptions::default() }, &file, "here:2/3");
}

#[test]
fn typed_hosts_select_nodes_of_the_job() {
    check(&HostOptions::default(), &job(), "n1:8 n2:8 n3:8 n4:8 of 123 for 30");
    check(&hosts("n3,n1:2"), &job(), "n3:8 n1:2 of 123");
    check(&hosts("n[1-4]"), &job(), "n1:8 n2:8 n3:8 n4:8 of 123 for 30");
    check_error(&hosts("n[3-7]"), &job(), "n[5-7] are not among the nodes of Slurm job 123");
    check_error(&hosts("n1.example.org"), &job(), "n1.example.org is not among the nodes of Slurm job 123");
    check(&HostOptions { manager: ManagerChoice::None, ..hosts("n9") }, &job(), "n9");
}

#[test]
fn nodes_are_selected_and_then_excluded() {
    let options = HostOptions { select: Some("1..3".into()), ..HostOptions::default() };
    check(&options, &job(), "n1:8 n2:8 n3:8 of 123");
    let options = HostOptions { exclude: Some("n2,n[4-9]".into()), ..options };
    let remark = "--exclude: n[4-9] is not in the host list".to_owned();
    assert_eq!(found(&options, &job()), Ok(("n1:8 n3:8 of 123".to_owned(), vec![remark])));
    check(&HostOptions { select: Some("2".into()), ..hosts("b,a,b,c") }, &Fake::default(), "a:1");
    check_error(
        &HostOptions { exclude: Some("n[1-2]".into()), ..hosts("n1,n2") },
        &Fake::default(),
        "--exclude leaves no host to run on",
    );
}

#[test]
fn errors_name_the_place_and_the_problem() {
    check_error(
        &hosts("login,node[3-1]"),
        &Fake::default(),
        "-hosts, column 12: the range 3-1 goes downwards\n    login,node[3-1]\n               ^^^",
    );
    let file = |path: &str| HostOptions { sources: vec![HostSource::File(path.into())], ..HostOptions::default() };
    let fake = Fake::default().file("bad", "a\nb c\n").file("empty", "# none\n").file("-", "");
    check_error(&file("bad"), &fake, "bad, line 2, column 3: 'c' is not an attribute\n    b c\n      ^");
    check_error(&file("empty"), &fake, "empty: there is no host in it");
    check_error(&file("-"), &fake, "standard input: there is no host in it");
    check_error(&file("none"), &fake, "the hosts cannot be read from none: entity not found");
    let by_variable =
        |path: &str| HostOptions { sources: vec![HostSource::Variable("X", path.into())], ..HostOptions::default() };
    check_error(&by_variable("none"), &fake, "the hosts cannot be read from none (X): entity not found");
    check_error(&by_variable("empty"), &fake, "empty (X): there is no host in it");
    check_error(&hosts("ada@a,bob@a"), &fake, "host a is given with two users, ada and bob");
    check_error(
        &HostOptions { select: Some("3".into()), ..hosts("a,b") },
        &fake,
        "--select, column 1: there is no host 3, the list has 2\n    3\n    ^",
    );
    check_error(
        &HostOptions { exclude: Some("a:2".into()), ..hosts("a,b") },
        &fake,
        "--exclude, column 1: only host names are allowed here, without user or slots\n    a:2\n    ^^^",
    );
    check_error(
        &HostOptions::default(),
        &job().without("SLURM_JOB_NODELIST"),
        "SLURM_JOB_ID is set, as in a job of Slurm, but SLURM_JOB_NODELIST is not",
    );
}

#[test]
fn bad_nodes_are_left_out_by_index() {
    let all = find(&hosts("a,b,c"), &Fake::default(), &mut Vec::new()).unwrap();
    let names = |field: &NodeList| field.nodes().iter().map(|node| node.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&all.without(&[0, 2].into())), ["b"]);
    assert_eq!(names(&all.without(&[0, 1, 2].into())), Vec::<String>::new());
    assert_eq!(NodeList::HERE.without(&[0].into()), NodeList::HERE);
}

#[test]
fn a_list_of_this_machines_own_names_is_this_machine() {
    let named = |names: &[&str]| NodeList::Named {
        nodes: names.iter().map(|name| Node::named(*name)).collect(),
        allocation: None,
    };
    let own = |name: &str| OwnNames {
        name: name.into(),
        addresses: ["127.0.0.1", "10.0.0.1", "fd00::1"].map(|address| address.parse().unwrap()).into(),
    };
    let is_local = |names: &[&str], name: &str| matches!(named(names).or_local(&own(name)), NodeList::Local { .. });
    assert!(is_local(&["login"], "login") && is_local(&["LOGIN"], "login"));
    assert!(is_local(&["login"], "login.example.org") && is_local(&["login.example.org"], "login"));
    assert!(is_local(&["login", "localhost", "127.0.1.1", "10.0.0.1", "fd00:0::1"], "login"));
    assert!(!is_local(&["login", "node1"], "login"), "another host is reached over the network");
    assert!(!is_local(&["10.0.0.2"], "login") && !is_local(&["127.0.0.2"], "login"), "no interface has this address");
    assert!(!is_local(&["login.a.org"], "login.b.org") && !is_local(&["10.0.0.9"], "10"));
    assert_eq!(named(&["node1", "login", "localhost"]).here(&own("login")), [1, 2].into());
    let other_user = Node { user: Some("ada".into()), ..Node::named("login") };
    let list = NodeList::Named { nodes: vec![other_user], allocation: None };
    assert_eq!(list.clone().or_local(&own("login")), list);
    let slots = NodeList::Named { nodes: vec![Node::named("login").with_slots(4)], allocation: None };
    let gres = Resources::NONE;
    assert_eq!(slots.or_local(&own("login")), NodeList::Local { slots: Some(4), max_slots: None, gres });
    let gres: Resources = "fpga:allreduce:2".parse().unwrap();
    let nodes = vec![Node::named("localhost"), Node { gres: gres.clone(), ..Node::named("login") }];
    let list = NodeList::Named { nodes, allocation: None };
    assert_eq!(list.or_local(&own("login")), NodeList::Local { slots: None, max_slots: None, gres });
}
