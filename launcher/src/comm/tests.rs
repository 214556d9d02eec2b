//! Profiles of example jobs.

use std::fs;

use placement::matrix::Traffic;

use super::heat_map::{SHADES, colour};
use super::layout::{Anchor, Area, CAPITAL_HEIGHT, Ink, Label, text_width};
use super::*;

/// A ring of `ranks` ranks: each sends 1,000 bytes in 2 messages to the next one.
fn ring(ranks: u32) -> Matrix {
    let mut all = Collector::new(ranks).unwrap();
    (0..ranks).for_each(|rank| all.add(rank, (rank + 1) % ranks, Traffic { bytes: 1000, messages: 2 }).unwrap());
    all.finish()
}

fn words(line: &str) -> Vec<OsString> {
    std::iter::once("comm").chain(line.split_ascii_whitespace()).map(OsString::from).collect()
}

/// Runs `scela comm` on a file with this content, whose name replaces FILE.
fn run_on(content: &[u8], line: &str) -> Result<String, String> {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("a.comm");
    fs::write(&file, content).unwrap();
    let line = line.replace("FILE", file.to_str().unwrap());
    let name = |text: String| text.replace(file.to_str().unwrap(), "FILE");
    run(words(&line)).unwrap().map_err(|refusal| name(refusal.to_string()))
}

fn file_of(matrix: &Matrix) -> Vec<u8> {
    let mut bytes = Vec::new();
    matrix.write(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_summary_has_all_numbers() {
    let mut matrix = ring(4);
    matrix.add_remark("mapping: (vector,(0,2,2))");
    let expected = "\
4 ranks, 3.9 KiB in 8 messages
  mapping: (vector,(0,2,2))
mean message      500 B
receivers of one  1.0 on average, 1 at most (rank 0)
heaviest pairs
  0 -> 1              1000 B in 2 messages, 25.0 %
  1 -> 2              1000 B in 2 messages, 25.0 %
2 nodes, where the job ran
  inside nodes    50.0 % of bytes, 50.0 % of messages
  between nodes   2.0 KiB in 4 messages
  node 0 -> node 1         1000 B in 2 messages
  node 1 -> node 0         1000 B in 2 messages
";
    assert_eq!(run_on(&file_of(&matrix), "show FILE --top 2").as_deref(), Ok(expected));
}

#[test]
fn a_typed_placement_wins() {
    let mut matrix = ring(4);
    matrix.add_remark("mapping: (vector,(0,2,2))");
    let file = file_of(&matrix);
    let inside = |line: &str| {
        let text = run_on(&file, line)?;
        let line = text.lines().find(|line| line.contains("inside nodes")).unwrap_or_default();
        Ok::<_, String>(line.trim().split_ascii_whitespace().nth(2).unwrap_or_default().to_owned())
    };
    assert_eq!(inside("show FILE --rankmap 0,1,0,1").as_deref(), Ok("0.0"));
    assert_eq!(inside("show FILE --hosts a:3,b:1").as_deref(), Ok("50.0"));
    assert_eq!(inside("show FILE --hosts a:4").as_deref(), Ok("100.0"));
    let text = run_on(&file, "show FILE --hosts left,right --rankmap 0,0,1,1").unwrap();
    assert!(text.contains("left -> right") && text.contains("2 nodes, by --rankmap"), "{text}");
    let map = tempfile::NamedTempFile::new().unwrap();
    fs::write(&map, "# hosts left,right\n2*0\n2*1\n").unwrap();
    let shown = |more: &str| run_on(&file, &format!("show FILE --rankmap @{} {more}", map.path().display())).unwrap();
    assert_eq!(shown(""), text);
    assert!(shown("--hosts a,b").contains("a -> b"));
    let missing = run_on(&file, "show FILE --rankmap @/nonexistent").unwrap_err();
    assert!(missing.starts_with("option '--rankmap': '/nonexistent' cannot be read: No such file"), "{missing}");
    for (line, error) in [
        ("show FILE --rankmap 0,1", "the rank map has 2 ranks, and the profile 4"),
        ("show FILE --rankmap 0,0,0,2 --hosts a,b", "the rank map names node 2, and --hosts has 2 hosts"),
        ("show FILE --rankmap x", "the rank map has 'x' where the number of a node must be"),
    ] {
        assert_eq!(run_on(&file, line), Err(error.to_owned()));
    }
}

/// A remark is a text of any program.
#[test]
fn a_mapping_that_does_not_fit_means_nothing() {
    for remark in ["mapping: (vector,(0,2,1))", "mapping: x", "mapping: (vector,(0,4294967295,4294967295))"] {
        let mut matrix = ring(4);
        matrix.add_remark(remark);
        assert!(!run_on(&file_of(&matrix), "show FILE").unwrap().contains("inside nodes"), "{remark}");
    }
}

#[test]
fn profiles_of_others_are_read() {
    let text = run_on(b"0 5\n7 0\n", "show FILE").unwrap();
    assert!(text.starts_with("2 ranks, 12 B in 2 messages\n"), "{text}");
    let (one, other) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    fs::write(&one, "E\t0\t1\t3 bytes\t1 msgs sent\n").unwrap();
    fs::write(&other, "E\t1\t0\t4 bytes\t1 msgs sent\n").unwrap();
    let line = format!("show {} {}", one.path().display(), other.path().display());
    assert!(run(words(&line)).unwrap().unwrap().starts_with("2 ranks, 7 B in 2 messages\n"));
    fs::write(&other, file_of(&ring(3))).unwrap();
    let error = run(words(&line)).unwrap().unwrap_err().to_string();
    assert!(error.ends_with("only files of Open MPI's pml_monitoring can be put together"), "{error}");
}

#[test]
fn what_cannot_be_shown_is_an_error() {
    let line = "'FILE' cannot be read: line 1 of the communication matrix: a plain matrix has whole numbers of bytes, \
                separated by blanks or commas";
    assert_eq!(run_on(b"hello\n", "show FILE"), Err(line.to_owned()));
    let missing = run(words("show /nonexistent")).unwrap().unwrap_err().to_string();
    assert!(missing.starts_with("'/nonexistent' cannot be read: No such file"), "{missing}");
    for line in ["show", "show a --by colour", "draw a", ""] {
        assert!(run(words(line)).is_err(), "{line}");
    }
    let unwritable = run_on(&file_of(&ring(2)), "show FILE --svg /nonexistent/a.svg").unwrap_err();
    assert!(unwritable.starts_with("'/nonexistent/a.svg' cannot be written: "), "{unwritable}");
    for (words, why) in [
        ("show FILE --svg FILE", "option '--svg': 'FILE' is also read, or is the other picture"),
        ("show FILE --svg a --png ./a", "option '--png': './a' is also read, or is the other picture"),
        ("show FILE --rankmap @m --svg ./m", "option '--svg': './m' is also read, or is the other picture"),
        ("show FILE --png m --rankmap @m", "option '--png': 'm' is also read, or is the other picture"),
        ("show FILE --png -", "option '--png': '-' is no file: standard output has the summary"),
    ] {
        assert_eq!(run_on(&file_of(&ring(2)), words), Err(why.to_owned()));
    }
}

#[test]
fn pictures_are_bounded_and_show_each_bin() {
    let matrix = ring(5000);
    let map = HeatMap::new(&matrix, Measure::Bytes, svg::BINS_MAX);
    assert_eq!((map.per_bin, map.side), (40, 125));
    assert_eq!((map.sum(0, 0), map.sum(0, 1), map.sum(124, 0), map.sum(1, 0)), (39_000, 1000, 1000, 0));
    assert_eq!((map.shade(0, 0), map.shade(0, 1), map.shade(1, 0)), (Some(SHADES - 1), Some(0), None));
    assert_eq!((map.value_of(0), map.value_of(SHADES - 1)), (1000, 39_000));
    let picture = Picture::new(&map, None);
    // Two bins in each row, the frame, the scale and the marks of axes; an SVG has a background, too.
    assert_eq!(picture.areas.len(), 2 * 125 + 4 + SHADES + 2 * 5);
    let text = svg::draw(&picture);
    assert_eq!(text.matches("<rect").count(), picture.areas.len() + 1);
    assert!(text.contains(">5000 ranks, 40 x 40 in a square<") && text.ends_with("</svg>\n"));
    let messages = HeatMap::new(&matrix, Measure::Messages, 1);
    assert_eq!((messages.side, messages.sum(0, 0)), (1, 10_000));
}

#[test]
fn nodes_are_drawn_as_lines() {
    let matrix = ring(4);
    let nodes = NodeMap::of(&matrix, Some("0,0,1,1"), None).unwrap();
    let picture = Picture::new(&HeatMap::new(&matrix, Measure::Bytes, 128), nodes.as_ref());
    let borders = |picture: &Picture| -> Vec<_> {
        let areas = picture.areas.iter().filter(|area| area.ink == Ink::Border);
        areas.map(|area| (area.width, area.height)).collect()
    };
    assert_eq!(borders(&picture), [(1, 512), (512, 1)], "through the matrix");
    assert!(svg::draw(&picture).contains("fill=\"#3377aa\""));
    // A line through the matrix would hide ranks, which have one pixel each.
    let (many, map) = (ring(1024), (0..1024).map(|rank| if rank < 512 { "0" } else { "1" }).collect::<Vec<_>>());
    let nodes = NodeMap::of(&many, Some(&map.join(",")), None).unwrap();
    let picture = Picture::new(&HeatMap::new(&many, Measure::Bytes, png::BINS_MAX), nodes.as_ref());
    assert_eq!(borders(&picture), [(1, 5), (5, 1)], "beside the matrix");
}

/// Returns the pixels of a PNG, as places in its palette, and the length of its rows.
fn decoded(bytes: &[u8]) -> (Vec<u8>, usize) {
    let mut reader = ::png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    (pixels, info.width as usize)
}

#[test]
fn a_png_has_all_bins_and_texts() {
    for (matrix, side) in [(ring(2), 512), (ring(600), 600), (ring(3000), 1000), (Matrix::default(), 512)] {
        let picture = Picture::new(&HeatMap::new(&matrix, Measure::Bytes, png::BINS_MAX), None);
        let (pixels, width) = decoded(&png::draw(&picture).unwrap());
        assert_eq!((width, pixels.len() / width), (picture.width as usize, picture.height as usize));
        let frame = picture.areas.iter().find(|area| area.ink == Ink::Dark).unwrap();
        assert_eq!(frame.width, side + 2, "the frame is around the matrix");
        let (left, top) = (frame.x as usize + 1, frame.y as usize + 1);
        if matrix.ranks() == 2 {
            // Rank 0 sends to rank 1, in the upper right quarter.
            let at = |x: usize, y: usize| pixels[(top + y) * width + left + x] > 0;
            assert_eq!([at(0, 0), at(511, 0), at(0, 511), at(511, 511)], [false, true, true, false]);
        }
    }
    // The first dot of "0" at the left axis, and the stem of "r" in "receiving rank".
    let label = |text: &str, anchor, is_turned| Label { x: 40, y: 60, anchor, is_turned, text: text.to_owned() };
    let drawn = |label: Label| {
        let picture = Picture { width: 80, height: 80, areas: Vec::new(), labels: vec![label] };
        let (pixels, width) = decoded(&png::draw(&picture).unwrap());
        let dark: Vec<_> = (0..80 * 80).filter(|at| pixels[*at] > 0).map(|at| (at % width, at / width)).collect();
        let (xs, ys) = (dark.iter().map(|at| at.0), dark.iter().map(|at| at.1));
        (xs.clone().min().unwrap(), xs.max().unwrap(), ys.clone().min().unwrap(), ys.max().unwrap())
    };
    assert_eq!(drawn(label("B", Anchor::Start, false)), (40, 49, 46, 59));
    assert_eq!(drawn(label("B", Anchor::End, false)), (28, 37, 46, 59));
    assert_eq!(drawn(label("BB", Anchor::Middle, false)), (28, 49, 46, 59));
    assert_eq!(drawn(label("g", Anchor::Start, false)), (40, 49, 50, 63), "below the line");
    assert_eq!(drawn(label("B", Anchor::Start, true)), (26, 39, 50, 59), "upwards");
}

/// Ranks of the axes are named at their rows, and the values of the scale are those of its shades.
#[test]
fn a_picture_names_ranks_and_values() {
    let texts = |ranks: u32, bins_max: u32| -> Vec<String> {
        let picture = Picture::new(&HeatMap::new(&ring(ranks), Measure::Messages, bins_max), None);
        picture.labels.into_iter().map(|label| label.text).collect()
    };
    let mut all = texts(32, 128).into_iter();
    // Below the matrix, and to its left.
    let axes: Vec<String> = all.by_ref().take(16).collect();
    assert_eq!(axes, (0..32).step_by(4).flat_map(|rank| [rank.to_string(), rank.to_string()]).collect::<Vec<_>>());
    let around = ["receiving rank", "sending rank", "messages", "2", "Messages from rank to rank", "32 ranks"];
    assert_eq!(all.collect::<Vec<_>>(), around);
    // 128 ranks in a square: 127 pairs are in it, and one leaves it.
    let values = |texts: Vec<String>| {
        texts.into_iter().skip_while(|text| text != "messages").skip(1).take(5).collect::<Vec<_>>()
    };
    assert_eq!(values(texts(512, 4)), ["254", "74", "22", "6", "2"]);
    let map = HeatMap::new(&Matrix::default(), Measure::Bytes, 8);
    assert_eq!(Picture::new(&map, None).labels.len(), 4, "no ranks, no scale");
}

/// All that is drawn is inside of the picture, has a glyph, and covers no other text.
#[test]
fn everything_has_room() {
    for ranks in [1, 2, 7, 64, 100, 1000, 1024, 5000, 65_536, 1_048_576] {
        for (measure, bins_max) in [(Measure::Bytes, svg::BINS_MAX), (Measure::Messages, png::BINS_MAX)] {
            let picture = Picture::new(&HeatMap::new(&ring(ranks), measure, bins_max), None);
            let is_inside =
                |area: &Area| area.x + area.width <= picture.width && area.y + area.height <= picture.height;
            assert!(picture.areas.iter().all(is_inside), "{ranks}");
            let boxes: Vec<_> = picture.labels.iter().map(extent).collect();
            for (at, (x, y)) in boxes.iter().enumerate() {
                let label = &picture.labels[at];
                assert!(label.text.chars().all(font::has), "{label:?}");
                assert!(
                    x.0 >= 0 && y.0 >= 0 && x.1 <= picture.width.into() && y.1 <= picture.height.into(),
                    "{label:?}"
                );
                let covers = |(other_x, other_y): &((i64, i64), (i64, i64))| {
                    x.0 < other_x.1 && other_x.0 < x.1 && y.0 < other_y.1 && other_y.0 < y.1
                };
                assert_eq!(boxes.iter().filter(|other| covers(other)).count(), 1, "{label:?} with {ranks} ranks");
            }
        }
    }
}

/// Returns the columns and the rows that a text of capitals takes.
fn extent(label: &Label) -> ((i64, i64), (i64, i64)) {
    let (width, height) = (i64::from(text_width(&label.text)), i64::from(CAPITAL_HEIGHT));
    let before = match label.anchor {
        Anchor::Start => 0,
        Anchor::Middle => width / 2,
        Anchor::End => width,
    };
    let (x, y) = (i64::from(label.x), i64::from(label.y));
    match label.is_turned {
        false => ((x - before, x - before + width), (y - height, y)),
        true => ((x - height, x), (y + before - width, y + before)),
    }
}

#[test]
fn more_is_darker() {
    let light = |shade| colour(shade).map(u32::from).iter().sum::<u32>();
    assert!((1..SHADES).all(|shade| light(shade) <= light(shade - 1)));
}

#[test]
fn sizes_have_units() {
    for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (u64::MAX, "16.0 EiB")]
    {
        assert_eq!(size_text(bytes), text);
    }
}
