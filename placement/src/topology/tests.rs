//! Topologies on examples.

use super::*;

/// Expands `a,b` and `n[1-3]` with single digits.
fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for part in list.split(',') {
        match part.split_once('[') {
            None if part.is_empty() => return Err("a name is empty".to_owned()),
            None => names.push(part.to_owned()),
            Some((prefix, range)) => {
                let (first, last) = range.trim_end_matches(']').split_once('-').ok_or("no range")?;
                let number = |text: &str| text.parse::<u32>().map_err(|error| error.to_string());
                names.extend((number(first)?..=number(last)?.min(99)).map(|at| format!("{prefix}{at}")));
            }
        }
    }
    Ok(names)
}

fn file(text: &str) -> Result<Topology, String> {
    Topology::parse_file(text, &expand).map_err(|error| error.to_string())
}

fn words(text: &str) -> Result<Topology, String> {
    Topology::parse_words(text).map_err(|error| error.to_string())
}

/// Returns the distances from the first place to all.
fn distances(topology: &Topology) -> Vec<u32> {
    (0..topology.places()).map(|to| topology.distance(0, to)).collect()
}

#[test]
fn words_make_topologies() {
    assert_eq!(distances(&words("torus:4x3").unwrap()), [0, 1, 1, 1, 2, 2, 2, 3, 3, 1, 2, 2]);
    assert_eq!(distances(&words("mesh:5").unwrap()), [0, 1, 2, 3, 4]);
    assert_eq!(distances(&words("flat:3").unwrap()), [0, 2, 2]);
    let fat = words("fat-tree:2:36").unwrap();
    assert_eq!((fat.places(), fat.distance(0, 17), fat.distance(0, 18), fat.distance(0, 647)), (648, 2, 4, 4));
    let fat = words("fat-tree:3:4").unwrap();
    assert_eq!((fat.places(), distances(&fat)), (16, [[0, 2, 4, 4].to_vec(), vec![6; 12]].concat()));
    let mut route = Vec::new();
    fat.route(0, 15, &mut route);
    assert_eq!(route.iter().map(|link| fat.width(*link)).collect::<Vec<_>>(), [1, 2, 4, 4, 2, 1]);
    assert_eq!(words("fat-tree:1:8").unwrap().places(), 8);
    let dragonfly = words("dragonfly:3:2:2").unwrap();
    assert_eq!(distances(&dragonfly), [0, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5]);
}

#[test]
fn wrong_words_are_refused() {
    for (text, expected) in [
        ("ring:4", "'ring:4' is no topology"),
        ("torus", "'torus' is no topology"),
        ("torus:0x2", "the topology 'torus:0x2' needs whole numbers from 1 to 4294967295"),
        ("mesh:", "the topology 'mesh:' needs whole numbers from 1 to 4294967295"),
        ("flat:99999999999", "the topology 'flat:99999999999' needs whole numbers from 1 to 4294967295"),
        ("torus:1x1x1x1x1x1x1x1x2", "the topology 'torus:1x1x1x1x1x1x1x1x2' has more than 8 dimensions"),
        ("fat-tree:2:7", "the topology 'fat-tree:2:7' needs an even number of ports: half of them lead upwards"),
        ("fat-tree:99:36", "the topology 'fat-tree:99:36' has more than 32 levels"),
        ("fat-tree:2", "the topology 'fat-tree:2' must have the form fat-tree:LEVELS:PORTS"),
        ("dragonfly:2", "the topology 'dragonfly:2' must have the form dragonfly:GROUPS:ROUTERS:HOSTS"),
        ("flat:2:2", "the topology 'flat:2:2' must have the form flat:HOSTS"),
        ("torus:1048577", "the topology has more than 1048576 hosts"),
        ("fat-tree:20:64", "the topology has more than 1048576 hosts"),
        ("dragonfly:4294967295:4294967295:4294967295", "the topology has more than 1048576 hosts"),
        ("dragonfly:1:65536:1", "the topology has more than 67108864 links"),
    ] {
        assert_eq!(words(text).unwrap_err(), expected, "{text}");
    }
}

const TREE: &str = "# ours\nSwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 Nodes=n[2-3] LinkSpeed=10 # slow\n\
                    SwitchName=s2 \\\n Switches=s[0-1]\n";

#[test]
fn slurm_trees_are_read() {
    let tree = file(TREE).unwrap();
    assert_eq!((tree.names(), distances(&tree)), (&expand("n[0-3]").unwrap()[..], vec![0, 2, 4, 4]));
    let shown = "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-1]\nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[2-3]\n\
                 SwitchName=s2 Level=1 LinkSpeed=1 Nodes=n[0-3] Switches=s[0-1]\n";
    assert_eq!(distances(&file(shown).unwrap()), [0, 2, 4, 4]);
    // Slurm joins lines without a blank.
    let continued = file("SwitchName=s0 Nodes=n0\\\n,n1\nSwitchName=s1\\\n Nodes=n2\\").unwrap();
    assert_eq!((continued.names(), continued.text()), (&expand("n[0-2]").unwrap()[..], "tree of Slurm: 2 switches"));
    assert_eq!(file("SwitchName=s0 Nodes=n0").unwrap().text(), "tree of Slurm: 1 switch");
    // Two trees, joined by a switch of ours.
    let two = file("SwitchName=a Nodes=x\nSwitchName=b Nodes=y").unwrap();
    assert_eq!(distances(&two), [0, 4]);
    assert_eq!(two.places_of(["y.example.org", "X"].into_iter()), Ok(vec![1, 0]));
    let strangers = two.places_of(["u", "v", "w", "x", "y", "z", "t"].into_iter()).unwrap_err();
    assert_eq!(strangers.to_string(), "the topology does not have u, v, w, z and 1 more");
    let small = words("torus:2x2").unwrap().places_of(["a"; 5].into_iter()).unwrap_err();
    assert_eq!(small.to_string(), "the topology has 4 hosts, and the list has 5");
}

#[test]
fn slurm_blocks_are_read() {
    let blocks = "BlockName=b1 Nodes=n[0-1]\nBlockName=b2 Nodes=n[2-3]\nBlockName=b3 Nodes=n[4-5]\nBlockSizes=2,4\n";
    assert_eq!(distances(&file(blocks).unwrap()), [0, 2, 4, 4, 6, 6]);
}

/// The output of `scontrol show topology` for the blocks above, in the format of `_print_topo_record` in
/// `src/plugins/topology/block/topology_block.c` of Slurm: 23.11 and 24.05 print the names and nodes, 24.11 and later also the
/// sizes, and the aggregated blocks after the others.
#[test]
fn slurm_blocks_are_read_as_scontrol_shows_them() {
    let old = "BlockName=b1 BlockIndex=0 Nodes=n[0-1]\nBlockName=b2 BlockIndex=1 Nodes=n[2-3]\n\
               BlockName=b3 BlockIndex=2 Nodes=n[4-5]\n";
    assert_eq!(distances(&file(old).unwrap()), [0, 2, 4, 4, 4, 4]);
    let new = "BlockName=b1 BlockIndex=0 Nodes=n[0-1] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n[2-3] BlockSize=2\n\
               BlockName=b3 BlockIndex=2 Nodes=n[4-5] BlockSize=2\nAggregatedBlock=b[1-2] BlockIndex=3 Nodes=n[0-3] BlockSize=4\n\
               AggregatedBlock=b3 BlockIndex=4 Nodes=n[4-5] BlockSize=4\n";
    let topology = file(new).unwrap();
    assert_eq!((topology.places(), distances(&topology)), (6, vec![0, 2, 4, 4, 6, 6]));
}

#[test]
fn yaml_is_read() {
    let tree = "---\n- topology: t\n  cluster_default: false\n  flat: true\n- topology: u\n  cluster_default: true\n  \
                tree:\n    switches:\n      - switch: top\n        children: s[1-2]\n      - switch: s1\n        \
                nodes: n[0-1] # both\n      - switch: s2\n        nodes: 'n[2-3]'\n";
    assert_eq!(distances(&file(tree).unwrap()), [0, 2, 4, 4]);
    let block = "- topology: b\n  block:\n    block_sizes: [2, 4]\n    blocks:\n    - {block: b1, nodes: 'n[0-1]'}\n    \
                 - block: b2\n      nodes: n[2-3]\n";
    assert_eq!(distances(&file(block).unwrap()), [0, 2, 4, 4]);
    let torus = "- topology: t\n  torus3d:\n    - name: one\n      dims: {x: 2, y: 3, z: 1}\n      nodes: n[0-5]\n";
    let torus = file(torus).unwrap();
    assert_eq!((torus.names()[1].as_str(), distances(&torus)), ("n1", vec![0, 1, 1, 2, 1, 2]));
    let regions = "- topology: t\n  torus3d:\n    - dims:\n        x: 2\n        y: 2\n        z: 1\n      regions:\n      \
                   - anchor: {x: 0, y: 1, z: 0}\n        dims: {x: 2, y: 1, z: 1}\n        nodes: a,b\n";
    assert_eq!(file(regions).unwrap().names(), ["", "", "a", "b"]);
}

#[test]
fn wrong_files_are_refused_with_the_line() {
    let begin = "a line must begin with SwitchName= or BlockName=";
    for (text, expected) in [
        ("", "the file names no hosts"),
        ("# nothing\n", "the file names no hosts"),
        ("SwitchName=a Nodes=x\nNodes=y", &format!("line 2: {begin}")),
        ("SwitchName=a Nodes=,", "line 1: a name is empty"),
        (
            "SwitchName=a Switches=b\nSwitchName=b Switches=a Nodes=x\n",
            "switch b is below itself, or below more than 32 others",
        ),
        ("BlockName=b Nodes=x\nBlockSizes=x", "line 2: BlockSizes needs numbers"),
        ("- topology: x\n  tree: &a\n", "line 2: the value is not understood"),
        ("- topology: x\n  flat: true\n", "line 1: the topology has none of tree, block and torus3d"),
        ("- topology: x\n torus: 1\n", "line 2: the line is indented otherwise than those before it"),
        ("- torus3d:\n    dims: {x: 2, y: 2, z: 2}\n    nodes: a\n", "line 1: the torus has no room for a, or more"),
    ] {
        assert_eq!(file(text).unwrap_err(), expected, "{text}");
    }
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    fn any_topology() -> impl Strategy<Value = Topology> {
        let torus = proptest::collection::vec(1u32..6, 1..4).prop_map(|sizes| {
            let text = sizes.iter().map(u32::to_string).collect::<Vec<_>>().join("x");
            format!("torus:{text}")
        });
        let mesh = (1u32..7, 1u32..7).prop_map(|(a, b)| format!("mesh:{a}x{b}"));
        let fat = (1u32..4, 1u32..4).prop_map(|(levels, half)| format!("fat-tree:{levels}:{}", half * 2));
        let dragonfly = (1u32..6, 1u32..5, 1u32..4).prop_map(|(g, r, h)| format!("dragonfly:{g}:{r}:{h}"));
        prop_oneof![torus, mesh, fat, dragonfly].prop_map(|text| Topology::parse_words(&text).unwrap())
    }

    proptest! {
        #[test]
        fn a_route_has_as_many_links_as_the_distance(topology in any_topology(), seed in any::<u64>()) {
            let places = u64::from(topology.places());
            let (from, to) = ((seed % places) as u32, (seed / 7919 % places) as u32);
            let mut route = Vec::new();
            topology.route(from, to, &mut route);
            prop_assert_eq!(route.len(), topology.distance(from, to) as usize);
            prop_assert_eq!(topology.distance(from, to), topology.distance(to, from));
            let mut links = route.clone();
            links.sort_unstable();
            links.dedup();
            prop_assert_eq!(links.len(), route.len(), "a link occurs twice");
            prop_assert!(route.iter().all(|link| *link < topology.links()));
            for link in route {
                prop_assert!(!topology.link_name(link, &|place| place.to_string()).is_empty());
            }
        }

        #[test]
        fn a_torus_route_is_a_walk(sizes in proptest::collection::vec(1u32..6, 1..4), seed in any::<u64>()) {
            let torus = Topology::torus(&sizes).unwrap();
            let places = u64::from(torus.places());
            let (from, to) = ((seed % places) as u32, (seed / 7919 % places) as u32);
            let mut route = Vec::new();
            torus.route(from, to, &mut route);
            let end = route.iter().fold(from, |here, link| {
                assert_eq!(torus.ends(*link)[0], Some(here));
                torus.ends(*link)[1].unwrap()
            });
            prop_assert_eq!(end, to);
        }

        #[test]
        fn a_split_keeps_all_places(topology in any_topology()) {
            let mut places: Vec<u32> = (0..topology.places()).collect();
            if places.len() > 1 {
                let at = topology.split(&mut places, &|_| 1);
                prop_assert!(at > 0 && at < places.len());
                places.sort_unstable();
                prop_assert!(places.iter().copied().eq(0..topology.places()));
            }
        }

        #[test]
        fn no_text_panics(text in "([-a-zN:=\\[\\]{},# \n]|SwitchName=|Nodes=|Switches=|  |tree:|- ){0,40}") {
            let _ = Topology::parse_file(&text, &expand);
            let _ = Topology::parse_words(&text);
        }
    }
}
