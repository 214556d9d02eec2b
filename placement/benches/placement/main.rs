//! Compares the mapper with block placement and with Scotch's `scotch_gmap` on the same matrices.
//!
//! `cargo bench -p placement --bench placement` prints the tables; with `-- --write` it also writes them into
//! docs/placement.md. Debian's package scotch has the programs; without them their columns are empty.

mod scotch;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use placement::graph::Graph;
use placement::mapping::{Chosen, Job, Mapped, Metrics, figures, map};
use placement::patterns::{Pattern, matrix};
use placement::topology::Topology;

/// The seeds of matrices and mappings.
const SEEDS: [u64; 3] = [1, 2, 3];

/// A figure of Scotch's mapping: its metrics, its time and the most ranks on a host, and ours for the same graph.
type ValueOf<'a> = dyn Fn(&(Metrics, Duration, u32), &Compared) -> f64 + 'a;

/// A mapping by both programs.
struct Compared {
    mapped: Mapped,
    time: Duration,
    scotch: Option<(Metrics, Duration, u32)>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let only = arguments.iter().find(|argument| !argument.starts_with("--")).cloned();
    let directory = std::env::temp_dir().join(format!("scela-placement-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for Scotch's files");
    let mut counts = [0; 5];
    let graphs = graphs(&directory, only.as_deref(), &mut counts);
    println!("{graphs}");
    let seed = seed_table(&directory, &mut counts);
    println!("{seed}");
    let [mapped, relieved, improved, block, folded] = counts;
    let fallbacks = format!(
        "Of these {} mappings, {mapped} were the bipartition's, {relieved} the same after exchanges that relieve the heaviest \
         link, {folded} folds of grids, {improved} block placement after exchanges, and {block} block placement itself.\n",
        counts.iter().sum::<u32>()
    );
    println!("{fallbacks}");
    let _ = std::fs::remove_dir_all(&directory);
    if arguments.iter().any(|argument| argument == "--write") {
        write("graphs", &graphs);
        write("seed", &seed);
        write("fallbacks", &fallbacks);
    }
}

/// Replaces the text between the markers of a table in docs/placement.md.
fn write(name: &str, text: &str) {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/placement.md"));
    let page = std::fs::read_to_string(&path).expect("docs/placement.md");
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let from = page.find(&begin).expect("the first marker") + begin.len();
    let to = page.find(&end).expect("the last marker");
    std::fs::write(&path, format!("{}{text}{}", &page[..from], &page[to..])).expect("docs/placement.md is written");
}

fn compare(
    directory: &Path,
    pattern: Pattern,
    ranks: u32,
    topology: &Topology,
    seed: u64,
    counts: &mut [u32; 5],
) -> Compared {
    let matrix = matrix(pattern, ranks, seed);
    // Patterns that need a square or a power of two have fewer ranks.
    let ranks = matrix.ranks();
    let places: Vec<u32> = (0..topology.places()).collect();
    let capacities = vec![1; places.len()];
    let job = Job { matrix: &matrix, topology, places: &places, capacities: &capacities, outages: None, seed };
    let block: Vec<u32> = (0..ranks).collect();
    let start = Instant::now();
    let mapped = map(&job, &block);
    let time = start.elapsed();
    assert!(mapped.after.is_never_worse(&mapped.before), "{pattern:?} {ranks}");
    let at = match mapped.chosen {
        Chosen::Mapped => 0,
        Chosen::Relieved => 1,
        Chosen::Improved => 2,
        // Another program takes part only on the command line.
        Chosen::Block | Chosen::Foreign => 3,
        Chosen::Folded => 4,
    };
    counts[at] += 1;
    let scotch = scotch::gmap(directory, &Graph::of(&matrix), topology);
    let scotch = scotch.map(|scotch::Mapping { candidates, time }| {
        let measured = candidates.into_iter().map(|host_of| {
            let mut held = vec![0; places.len()];
            host_of.iter().for_each(|host| held[*host as usize] += 1);
            (figures(&job, &host_of), held.into_iter().max().unwrap_or_default())
        });
        let (metrics, most) = measured.min_by_key(|(metrics, _)| metrics.hop_bytes).expect("there is a mapping");
        (metrics, time, most)
    });
    Compared { mapped, time, scotch }
}

fn graphs(directory: &Path, only: Option<&str>, counts: &mut [u32; 5]) -> String {
    let mut text = String::from(
        "| pattern | ranks | torus | block | mapped | scotch_gmap | mapped / Scotch | heaviest link: mapped / block | Scotch / block | ms | Scotch's ms |\n\
         |---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for (ranks, words) in [(64, "torus:4x4x4"), (512, "torus:8x8x8"), (16_384, "torus:32x32x16")] {
        let topology = Topology::parse_words(words).expect("a topology");
        for pattern in Pattern::ALL {
            if only.is_some_and(|only| !format!("{}-{ranks}", pattern.name()).contains(only)) {
                continue;
            }
            let seeds = if ranks > 1000 { &SEEDS[..1] } else { &SEEDS[..] };
            let all: Vec<Compared> =
                seeds.iter().map(|seed| compare(directory, pattern, ranks, &topology, *seed, counts)).collect();
            let mean = |value: &dyn Fn(&Compared) -> f64| all.iter().map(value).sum::<f64>() / all.len() as f64;
            let block = mean(&|one| one.mapped.before.hops_per_byte());
            let mapped = mean(&|one| one.mapped.after.hops_per_byte());
            let heavy = mean(&|one| one.mapped.after.heaviest as f64 / one.mapped.before.heaviest as f64);
            let time = mean(&|one| one.time.as_secs_f64() * 1000.0);
            let _ = write!(text, "| {} | {ranks} | {} | {block:.3} | {mapped:.3} ", pattern.name(), &words[6..]);
            if all.iter().all(|one| one.scotch.is_some()) {
                let of =
                    |value: &ValueOf<'_>| mean(&|one| one.scotch.as_ref().map_or(0.0, |scotch| value(scotch, one)));
                let scotch = of(&|(metrics, ..), _| metrics.hops_per_byte());
                let load = of(&|(metrics, ..), one| metrics.heaviest as f64 / one.mapped.before.heaviest as f64);
                let its_time = of(&|(_, time, _), _| time.as_secs_f64() * 1000.0);
                let most = all.iter().filter_map(|one| one.scotch.as_ref()).map(|(.., most)| *most).max();
                let crowded = if most > Some(1) { "*" } else { "" };
                let _ = writeln!(
                    text,
                    "| {scotch:.3}{crowded} | {:.2} | {heavy:.2} | {load:.2} | {time:.0} | {its_time:.0} |",
                    mapped / scotch
                );
            } else {
                let _ = writeln!(text, "| | | {heavy:.2} | | {time:.0} | |");
            }
            eprintln!("{}", text.lines().last().unwrap_or_default());
        }
    }
    text
}

/// The publication's programs, patterns like theirs, and its hops per byte before and after.
const SEED: [(&str, Pattern, u32, &str, &str); 6] = [
    ("NPB CG-D-256", Pattern::Cg, 256, "2.68", "2.07"),
    ("NPB CG-C-64", Pattern::Cg, 64, "2.83", "2.00"),
    ("NPB DT-85", Pattern::Dt, 85, "4.79", "1.75"),
    ("HPL-64", Pattern::Hpl, 64, "1.65", "1.65"),
    ("LAMMPS-64", Pattern::Halo3d, 64, "2.83", "1.78"),
    ("LAMMPS-256", Pattern::Halo3d, 256, "1.19", "1.47"),
];

fn seed_table(directory: &Path, counts: &mut [u32; 5]) -> String {
    let topology = Topology::parse_words("torus:8x8x8").expect("a topology");
    let mut text = String::from(
        "| program of the publication | its block | its Scotch | pattern like it | block | mapped | scotch_gmap |\n\
         |---|---:|---:|---|---:|---:|---:|\n",
    );
    for (program, pattern, ranks, its_block, its_scotch) in SEED {
        let one = compare(directory, pattern, ranks, &topology, 1, counts);
        let scotch = one.scotch.map_or_else(String::new, |(metrics, ..)| format!("{:.2}", metrics.hops_per_byte()));
        let _ = writeln!(
            text,
            "| {program} | {its_block} | {its_scotch} | {} | {:.2} | {:.2} | {scotch} |",
            pattern.name(),
            one.mapped.before.hops_per_byte(),
            one.mapped.after.hops_per_byte()
        );
    }
    text
}
