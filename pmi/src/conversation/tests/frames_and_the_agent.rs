//! PMI-2: requests that only the agent can answer.

use super::frames::framed;
use super::*;
use crate::limits::{ATTRIBUTE_BYTES_MAX, JOB_BYTES_MAX, PORT_BYTES_MAX, SERVICE_BYTES_MAX};
use crate::{NameError, SpawnCommand, SpawnRequest};

const SPAWN_2: &str = "cmd=spawn;ncmds=1;preputcount=0;subcmd=a;maxprocs=2;argc=0;infokeycount=0;";

#[test]
fn the_agent_is_asked_for_node_attributes() {
    let mut world = World::joined_2();
    let put = Request::NodePut { key: b"sharedFilename-0".into(), value: b"/dev/shm/a;b".into() };
    assert_eq!(world.ask_2("cmd=info-putnodeattr;key=sharedFilename-0;value=/dev/shm/a;;b;thrid=5;"), put);
    world.answer_2(Answer::NodePut(true), "cmd=info-putnodeattr-response;thrid=5;rc=0;");
    world.ask_2("cmd=info-putnodeattr;key=a;value=;");
    world.answer_2(Answer::NodePut(false), "cmd=info-putnodeattr-response;rc=1;errmsg=too_many_attributes;");
    for wait in [true, false] {
        let request = world.ask_2(&format!("cmd=info-getnodeattr;key=a;wait={};", if wait { "TRUE" } else { "FALSE" }));
        assert_eq!(request, Request::NodeGet { key: b"a".into(), wait });
        let found = "cmd=info-getnodeattr-response;found=TRUE;value=x;;;rc=0;";
        world.answer_2(Answer::NodeGot(Some(b"x;".into())), found);
    }
    world.ask_2("cmd=info-getnodeattr;key=a;wait=FALSE;thrid=6;");
    world.answer_2(Answer::NodeGot(None), "cmd=info-getnodeattr-response;thrid=6;found=FALSE;rc=0;");
}

#[test]
fn node_attributes_are_bounded() {
    let mut world = World::joined_2();
    let put =
        |key: usize, value: usize| format!("cmd=info-putnodeattr;key={};value={};", "k".repeat(key), "v".repeat(value));
    let refused = |command, why| format!("cmd={command}-response;rc=1;errmsg={why};");
    let command = "info-putnodeattr";
    world.check_2(&put(0, 1), &refused(command, "key_empty"));
    world.check_2(&put(KEY_BYTES_MAX + 1, 1), &refused(command, "key_longer_than_63_bytes"));
    world.check_2(&put(1, ATTRIBUTE_BYTES_MAX + 1), &refused(command, "value_too_long"));
    world.check_2("cmd=info-putnodeattr;key=PMI_x;value=a;", &refused(command, "key_reserved"));
    world.ask_2(&put(KEY_BYTES_MAX, ATTRIBUTE_BYTES_MAX));
    world.answer_2(Answer::NodePut(true), "cmd=info-putnodeattr-response;rc=0;");
    // A key that no rank can put is absent, and waiting for it is refused.
    let long = "k".repeat(KEY_BYTES_MAX + 1);
    for key in ["PMI_x", "", &long] {
        let none = "cmd=info-getnodeattr-response;found=FALSE;rc=0;";
        world.check_2(&format!("cmd=info-getnodeattr;key={key};wait=FALSE;"), none);
    }
    let command = "info-getnodeattr";
    world.check_2("cmd=info-getnodeattr;key=PMI_x;wait=TRUE;", &refused(command, "key_reserved"));
    let waiting = format!("cmd=info-getnodeattr;key={long};wait=TRUE;");
    world.check_2(&waiting, &refused(command, "key_longer_than_63_bytes"));
    world.ask_2(&format!("cmd=info-getnodeattr;key={};wait=TRUE;", "k".repeat(KEY_BYTES_MAX)));
}

#[test]
fn the_agent_is_asked_for_entries_of_another_job() {
    let mut world = World::joined_2();
    world.check_2("cmd=kvs-put;key=a;value=own;", "cmd=kvs-put-response;rc=0;");
    let get = |job: &str, key: &str| format!("cmd=kvs-get;jobid={job};srcid=0;key={key};");
    let get_from_job = |job: &str| Request::Ask(RootRequest::GetFromJob { job: job.into(), key: b"a".into() });
    assert_eq!(world.ask_2(&get("kvs_0", "a")), get_from_job("kvs_0"));
    let found = "cmd=kvs-get-response;found=TRUE;value=theirs;rc=0;";
    world.answer_2(Answer::GotFromJob(Some(b"theirs".into())), found);
    assert_eq!(world.ask_2(&get("kvs_10", "a")), get_from_job("kvs_10"));
    let none = "cmd=kvs-get-response;found=FALSE;rc=0;";
    world.answer_2(Answer::GotFromJob(None), none);
    world.check_2(&get("kvs_1", "a"), "cmd=kvs-get-response;found=TRUE;value=own;rc=0;");
    let longest = "j".repeat(JOB_BYTES_MAX);
    assert_eq!(world.ask_2(&get(&longest, "a")), get_from_job(&longest));
    world.answer_2(Answer::GotFromJob(None), none);
    let too_long = "cmd=kvs-get-response;rc=1;errmsg=jobid_too_long;";
    world.check_2(&get(&format!("{longest}j"), "a"), too_long);
    // The agent is not asked for a key that no rank can have put.
    world.check_2(&get("kvs_0", "PMI_process_mapping"), none);
    world.check_2(&get("kvs_0", &"k".repeat(KEY_BYTES_MAX + 1)), none);
    world.check_2(&get("kvs_0", ""), "cmd=kvs-get-response;rc=1;errmsg=key_empty;");
}

#[test]
fn connecting_asks_whether_the_job_exists() {
    let mut world = World::joined_2();
    let connect = |job: &str| Request::Ask(RootRequest::Connect { job: job.into() });
    assert_eq!(world.ask_2("cmd=job-connect;jobid=kvs_0;"), connect("kvs_0"));
    world.answer_2(Answer::Connected(true), "cmd=job-connect-response;kvscopy=FALSE;rc=0;");
    assert_eq!(world.ask_2("cmd=job-connect;jobid=kvs_9;thrid=8;"), connect("kvs_9"));
    world.answer_2(Answer::Connected(false), "cmd=job-connect-response;thrid=8;rc=1;errmsg=no_such_job;");
    world.check_2("cmd=job-disconnect;jobid=kvs_0;", "cmd=job-disconnect-response;rc=0;");
    world.check_2("cmd=job-connect;jobid=;", "cmd=job-connect-response;rc=1;errmsg=jobid_empty;");
    let longest = "j".repeat(JOB_BYTES_MAX);
    let too_long = "cmd=job-connect-response;rc=1;errmsg=jobid_too_long;";
    world.check_2(&format!("cmd=job-connect;jobid={longest}j;"), too_long);
    assert_eq!(world.ask_2(&format!("cmd=job-connect;jobid={longest};")), connect(&longest));
}

#[test]
fn a_ring_passes_values_to_both_sides() {
    let mut world = World::joined_2();
    let ring = |left: &str, right: &str| format!("cmd=ring;ring-count=1;ring-left={left};ring-right={right};");
    let request = |left: &str, right: &str| Request::Ring { to_left: left.into(), to_right: right.into() };
    assert_eq!(world.ask_2(&ring("l;;1", "r")), request("l;1", "r"));
    assert_eq!(world.say(framed("cmd=job-getid;")), (vec![], String::new()), "waits for the others");
    let answer = Answer::Ring { position: 2, from_left: b"from l;".into(), from_right: b"".into() };
    world.answer_2(answer, "cmd=ring-response;ring-count=2;ring-left=from l;;;ring-right=;rc=0;");
    assert_eq!(world.say("").1, framed("cmd=job-getid-response;jobid=kvs_1;rc=0;"));
    let longest = "v".repeat(ATTRIBUTE_BYTES_MAX);
    let long = format!("{longest}v");
    let too_long = "cmd=ring-response;rc=1;errmsg=value_too_long;";
    world.check_2(&ring(&long, ""), too_long);
    world.check_2(&ring("", &long), too_long);
    world.check_2("cmd=ring;ring-left=a;", "cmd=ring-response;rc=1;errmsg=ring-right_missing;");
    assert_eq!(world.ask_2(&ring(&longest, &longest)), request(&longest, &longest));
}

#[test]
fn the_agent_is_asked_about_names() {
    let mut world = World::joined_2();
    let (service, port) = (b"svc two".to_vec(), b"tag#0$ a;b".to_vec());
    let request = world.ask_2("cmd=name-publish;name=svc two;port=tag#0$ a;;b;infokeycount=0;");
    assert_eq!(request, Request::Ask(RootRequest::Publish { service: service.clone(), port: port.clone() }));
    world.answer_2(Answer::Published(Ok(())), "cmd=name-publish-response;rc=0;");
    let lookup = "cmd=name-lookup;name=svc two;infokeycount=0;";
    assert_eq!(world.ask_2(lookup), Request::Ask(RootRequest::Lookup { service: service.clone() }));
    let found = "cmd=name-lookup-response;port=tag#0$ a;;b;value=tag#0$ a;;b;rc=0;";
    world.answer_2(Answer::Found(Ok(port)), found);
    let unpublish = "cmd=name-unpublish;name=svc two;infokeycount=0;";
    assert_eq!(world.ask_2(unpublish), Request::Ask(RootRequest::Unpublish { service }));
    world.answer_2(Answer::Unpublished(Ok(())), "cmd=name-unpublish-response;rc=0;");

    let refused = |command, why| format!("cmd={command}-response;rc=1;errmsg={why};");
    world.ask_2("cmd=name-publish;name=a;port=b;");
    let taken = Answer::Published(Err(NameError::Taken));
    world.answer_2(taken, &refused("name-publish", "name is already published"));
    world.ask_2(lookup);
    let unknown = "cmd=name-lookup-response;found=FALSE;rc=1;errmsg=name is not published;";
    world.answer_2(Answer::Found(Err(NameError::Unknown)), unknown);
    world.ask_2(unpublish);
    let unknown = Answer::Unpublished(Err(NameError::Unknown));
    world.answer_2(unknown, &refused("name-unpublish", "name is not published"));
}

#[test]
fn names_and_ports_are_bounded() {
    let mut world = World::joined_2();
    let publish = |service: usize, port: usize| {
        format!("cmd=name-publish;name={};port={};", "s".repeat(service), "p".repeat(port))
    };
    let refused = |why| format!("cmd=name-publish-response;rc=1;errmsg={why};");
    world.check_2(&publish(SERVICE_BYTES_MAX + 1, 1), &refused("name_too_long"));
    world.check_2(&publish(1, PORT_BYTES_MAX + 1), &refused("port_too_long"));
    world.check_2(&publish(0, 1), &refused("name_empty"));
    world.check_2(&publish(1, 0), &refused("port_empty"));
    world.check_2("cmd=name-lookup;name=;", "cmd=name-lookup-response;rc=1;errmsg=name_empty;");
    world.check_2("cmd=name-unpublish;", "cmd=name-unpublish-response;rc=1;errmsg=name_missing;");
    world.ask_2(&publish(SERVICE_BYTES_MAX, PORT_BYTES_MAX));
}

#[test]
fn a_spawn_is_answered_after_its_launch() {
    let mut world = World::joined_2();
    let order = SpawnRequest {
        commands: vec![SpawnCommand { program: b"a".into(), args: vec![], nprocs: 2, info: vec![] }],
        preputs: vec![],
    };
    let spawned = |codes| Answer::Spawned(Ok(SpawnedJob { job: "kvs_2".into(), codes }));
    assert_eq!(world.ask_2(SPAWN_2), Request::Ask(RootRequest::Spawn(order)));
    world.answer_2(spawned(vec![0, 0]), "cmd=spawn-response;jobid=kvs_2;rc=0;");
    world.ask_2(SPAWN_2);
    world.answer_2(spawned(vec![0, 13]), "cmd=spawn-response;jobid=kvs_2;nerrs=1;errcodes=0,13;rc=0;");
    world.ask_2(SPAWN_2);
    world.answer_2(spawned(vec![13]), "cmd=spawn-response;rc=1;errmsg=some_processes_were_not_started;");
    world.ask_2(&SPAWN_2.replace("ncmds", "thrid=9;ncmds"));
    let refused = "cmd=spawn-response;thrid=9;rc=1;errmsg=no such file, or worse;";
    world.answer_2(Answer::Spawned(Err("no such file; or worse".into())), refused);
    world.check_2(
        "cmd=spawn;subcmd=a;maxprocs=0;",
        "cmd=spawn-response;rc=1;errmsg=number_of_processes_not_in_1..1048576;",
    );
    world.check_2("cmd=spawn;ncmds=2;subcmd=a;maxprocs=1;", "cmd=spawn-response;rc=1;errmsg=commands_incomplete;");
}

#[test]
fn unexpected_answers_are_dropped() {
    let mut world = World::joined_2();
    world.board = Board::partial(None);
    let answers = || {
        let names = [Answer::Published(Ok(())), Answer::Found(Ok(b"p".into())), Answer::Unpublished(Ok(()))];
        let others = [
            Answer::Released,
            Answer::Got(None),
            Answer::Spawned(Err(String::new())),
            Answer::Ring { position: 0, from_left: vec![], from_right: vec![] },
            Answer::NodePut(true),
            Answer::NodeGot(None),
            Answer::GotFromJob(None),
            Answer::Connected(true),
            Answer::Segment(true),
        ];
        names.into_iter().chain(others)
    };
    let asked = [
        ("cmd=kvs-fence;", "kvs-fence"),
        ("cmd=name-publish;name=a;port=b;", "name-publish"),
        ("cmd=name-lookup;name=a;", "name-lookup"),
        ("cmd=name-unpublish;name=a;", "name-unpublish"),
        (SPAWN_2, "spawn"),
        ("cmd=ring;ring-left=;ring-right=;", "ring"),
        ("cmd=info-putnodeattr;key=a;value=b;", "info-putnodeattr"),
        ("cmd=info-getnodeattr;key=a;", "info-getnodeattr"),
        ("cmd=kvs-get;jobid=x;key=a;", "kvs-get"),
        ("cmd=kvs-get;jobid=;key=a;", "kvs-get"),
        ("cmd=job-connect;jobid=x;", "job-connect"),
        ("cmd=scela-segment;", "scela-segment"),
    ];
    for (payload, command) in asked {
        let mut out = Vec::new();
        answers().for_each(|answer| world.conversation.answer(answer, &mut out));
        assert!(out.is_empty());
        world.ask_2(payload);
        answers().for_each(|answer| world.conversation.answer(answer, &mut out));
        assert!(!world.conversation.is_waiting());
        let out = String::from_utf8(out).unwrap();
        assert_eq!(out.matches("cmd=").count(), 1, "exactly one answer fits: {out}");
        assert!(out.contains(&format!("cmd={command}-response;")), "{out}");
    }
}
