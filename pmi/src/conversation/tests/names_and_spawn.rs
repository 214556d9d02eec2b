//! Published names and spawns, which the agent answers.

use super::*;
use crate::limits::{PORT_BYTES_MAX, SERVICE_BYTES_MAX};
use crate::{NameError, SpawnCommand, SpawnRequest};

#[test]
fn the_agent_is_asked_about_names() {
    let mut world = World::joined();
    let (service, port) = (b"svc two".to_vec(), b"tag#0$desc#abc$".to_vec());
    let request = world.ask("cmd=publish_name service=svc two port=tag#0$desc#abc$\n");
    assert_eq!(request, Request::Ask(RootRequest::Publish { service: service.clone(), port: port.clone() }));
    world.answer(Answer::Published(Ok(())), "cmd=publish_result rc=0 info=ok msg=success");
    let request = world.ask("cmd=lookup_name service=svc two\n");
    assert_eq!(request, Request::Ask(RootRequest::Lookup { service: service.clone() }));
    let found = "cmd=lookup_result rc=0 info=ok msg=success port=tag#0$desc#abc$";
    world.answer(Answer::Found(Ok(port)), found);
    let request = world.ask("cmd=unpublish_name service=svc two\n");
    assert_eq!(request, Request::Ask(RootRequest::Unpublish { service }));
    world.answer(Answer::Unpublished(Ok(())), "cmd=unpublish_result rc=0 info=ok msg=success");

    world.ask("cmd=publish_name service=a port=b\n");
    let taken = "cmd=publish_result rc=-1 info=failed msg=key_already_present";
    world.answer(Answer::Published(Err(NameError::Taken)), taken);
    world.ask("cmd=lookup_name service=a\n");
    let unknown = "cmd=lookup_result rc=-1 info=failed msg=service_not_found";
    world.answer(Answer::Found(Err(NameError::Unknown)), unknown);
    world.ask("cmd=unpublish_name service=a\n");
    let unknown = "cmd=unpublish_result rc=-1 info=failed msg=service_not_found";
    world.answer(Answer::Unpublished(Err(NameError::Unknown)), unknown);
}

#[test]
fn names_and_ports_are_bounded() {
    let mut world = World::joined();
    let publish = |service: usize, port: usize| {
        format!("cmd=publish_name service={} port={}", "s".repeat(service), "p".repeat(port))
    };
    let refused = |why| format!("cmd=publish_result rc=-1 msg={why}");
    world.check(&publish(SERVICE_BYTES_MAX + 1, 1), &refused("service_too_long"));
    world.check(&publish(1, PORT_BYTES_MAX + 1), &refused("port_too_long"));
    world.check(&publish(0, 1), &refused("service_empty"));
    world.check(&publish(1, 0), &refused("port_empty"));
    world.check("cmd=publish_name service=a port=b c", &refused("port_has_blank"));
    world.check("cmd=lookup_name service=", "cmd=lookup_result rc=-1 msg=service_empty");
    world.ask(&format!("{}\n", publish(SERVICE_BYTES_MAX, PORT_BYTES_MAX)));
}

#[test]
fn ports_that_would_break_a_line_are_refused() {
    let mut world = World::joined();
    world.board.publish(epoch(&[("a", "42\n")]));
    world.check("cmd=get kvsname=k key=a", "cmd=get_result rc=-1 msg=value_has_newline");
    world.check("cmd=getbyidx kvsname=k idx=0", "cmd=getbyidx_results rc=-1 msg=entry_has_newline");
    for port in [&b""[..], b"a b", b"a\n"] {
        world.ask("cmd=lookup_name service=a\n");
        let refused = "cmd=lookup_result rc=-1 msg=port_is_not_one_word";
        world.answer(Answer::Found(Ok(port.to_vec())), refused);
    }
}

#[test]
fn the_agent_is_asked_to_spawn_after_the_last_block() {
    let mut world = World::joined();
    let order = SpawnRequest {
        commands: vec![SpawnCommand { program: b"a".into(), args: vec![], nprocs: 2, info: vec![] }],
        preputs: vec![],
    };
    assert_eq!(world.say("mcmd=spawn\nnprocs=2\nexecn"), (vec![], String::new()));
    assert_eq!(world.ask("ame=a\nendcmd\n"), Request::Ask(RootRequest::Spawn(order)));
    world.answer(spawned(vec![0, 0]), "cmd=spawn_result rc=0");
    world.ask(SPAWN);
    world.answer(spawned(vec![0, 13]), "cmd=spawn_result rc=0 errcodes=0,13");
    world.ask(SPAWN);
    // Codes of another number than the requested ranks would kill the client.
    let refused = "cmd=spawn_result rc=-1 msg=some_processes_were_not_started";
    world.answer(spawned(vec![13]), refused);
    world.ask(SPAWN);
    let refused = "cmd=spawn_result rc=-1 msg=no_such_file";
    world.answer(Answer::Spawned(Err("no such file".into())), refused);
}

#[test]
fn refused_and_aborted_spawns_leave_the_conversation_in_step() {
    let mut world = World::joined();
    world.check(
        "mcmd=spawn\nnprocs=0\nexecname=a\nendcmd",
        "cmd=spawn_result rc=-1 msg=number_of_processes_not_in_1..1048576",
    );
    world.check("mcmd=dance\nx=y\nendcmd", "cmd=dance_result rc=-1 msg=unsupported");
    // Aborted inside a block or between two blocks.
    world.check("mcmd=spawn\nnprocs=1\ncmd=get_appnum", "cmd=appnum rc=0 appnum=1");
    world.check(
        "mcmd=spawn\ntotspawns=2\nspawnssofar=1\nnprocs=1\nexecname=a\nendcmd\n\ncmd=get_appnum",
        "cmd=appnum rc=0 appnum=1",
    );
    let (requests, out) = world.say("mcmd=spawn\ncmd=abort exitcode=3\n");
    assert_eq!(requests, [Request::Abort { code: 3, message: String::new() }]);
    assert_eq!(out, "");
    world.ask(SPAWN);
    world.answer(spawned(vec![0, 0]), "cmd=spawn_result rc=0");
    let torn = "mcmd=spawn\ntotspawns=2\nspawnssofar=1\nnprocs=1\nexecname=a\nendcmd\nnprocs=1\n";
    assert_eq!(world.why_broken(torn), "sent a line without a command");
}

fn spawned(codes: Vec<i32>) -> Answer {
    Answer::Spawned(Ok(SpawnedJob { job: "kvs_2".into(), codes }))
}
