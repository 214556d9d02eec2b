//! Slurm's `topology.yaml`: the first topology, or the one with `cluster_default: true`.
//!
//! The parser reads the part of YAML that such files use: mappings, lists, plain and quoted words, and `[a, b]` and
//! `{a: b}` on one line. Anchors, tags and text over several lines are refused.

use super::slurm::{Expand, Network, Switch};
use super::torus::Torus;
use super::{Shape, Topology, TopologyError};

/// The deepest nesting. Slurm's files have six levels.
const DEPTH_MAX: usize = 16;

#[derive(Debug, PartialEq)]
enum Value {
    Map(Vec<(String, Value)>),
    List(Vec<Value>),
    Text(String),
}

impl Value {
    fn find(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            Self::List(_) | Self::Text(_) => None,
        }
    }

    fn items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            Self::Map(_) | Self::Text(_) => std::slice::from_ref(self),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::List(items) => items.iter().map(Self::text).collect::<Vec<_>>().join(","),
            Self::Map(_) => String::new(),
        }
    }

    fn text_of(&self, key: &str) -> Option<String> {
        self.find(key).map(Self::text).filter(|text| !text.is_empty())
    }
}

/// Whether a file is YAML: its first line that says something begins with `-` or has a key with `:`.
pub(super) fn is_yaml(text: &str) -> bool {
    let mut lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.find(|line| !line.is_empty()).is_some_and(|line| line.starts_with('-') || !line.contains('='))
}

pub(super) fn parse(text: &str, expand: Expand<'_>) -> Result<Topology, TopologyError> {
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = without_comment(line);
        let content = line.trim();
        if !content.is_empty() && content != "---" {
            let indent = line.len() - line.trim_start().len();
            lines.push(Line { number: number + 1, indent, text: content });
        }
    }
    let mut reader = Reader { lines, at: 0 };
    if reader.lines.is_empty() {
        return Err(TopologyError::Empty);
    }
    let indent = reader.lines[0].indent;
    let value = reader.block(indent, 0)?;
    if reader.at < reader.lines.len() {
        return Err(reader.error("the line is indented otherwise than those before it"));
    }
    let is_default = |value: &&Value| value.text_of("cluster_default").is_some_and(|text| text == "true");
    let topologies = value.items();
    let chosen = topologies.iter().find(is_default).or(topologies.first()).ok_or(TopologyError::Empty)?;
    topology(chosen, expand).map_err(|error| match error {
        Problem::Reason(reason) => TopologyError::Line { line: 1, reason },
        Problem::Topology(error) => error,
    })
}

enum Problem {
    Reason(String),
    Topology(TopologyError),
}

impl From<String> for Problem {
    fn from(reason: String) -> Self {
        Self::Reason(reason)
    }
}

impl From<TopologyError> for Problem {
    fn from(error: TopologyError) -> Self {
        Self::Topology(error)
    }
}

fn topology(chosen: &Value, expand: Expand<'_>) -> Result<Topology, Problem> {
    let mut network = Network::default();
    if let Some(tree) = chosen.find("tree") {
        for switch in tree.find("switches").map(Value::items).unwrap_or_default() {
            let mut list = |key: &str| -> Result<Vec<String>, String> {
                switch.text_of(key).map_or(Ok(Vec::new()), |list| network.expand(&list, expand))
            };
            let (hosts, switches) = (list("nodes")?, list("children")?);
            network.switches.push(Switch { name: switch.text_of("switch").unwrap_or_default(), hosts, switches });
        }
        return Ok(network.into_topology("of Slurm")?);
    }
    if let Some(block) = chosen.find("block") {
        let sizes = block.find("block_sizes").map(Value::items).unwrap_or_default();
        let sizes: Result<Vec<u32>, _> = sizes.iter().map(|size| size.text().parse()).collect();
        network.block_sizes = sizes.map_err(|_| "block_sizes needs numbers".to_owned())?;
        for block in block.find("blocks").map(Value::items).unwrap_or_default() {
            let list = block.text_of("nodes").unwrap_or_default();
            let hosts = if list.is_empty() { Vec::new() } else { network.expand(&list, expand)? };
            network.blocks.push(Switch {
                name: block.text_of("block").unwrap_or_default(),
                hosts,
                switches: Vec::new(),
            });
        }
        return Ok(network.into_topology("of Slurm")?);
    }
    match chosen.find("torus3d").and_then(find_torus) {
        Some(torus) => of_torus(torus, &mut network, expand),
        None => Err(Problem::Reason("the topology has none of tree, block and torus3d".to_owned())),
    }
}

/// Returns the first torus in a value: Slurm has a list of them.
fn find_torus(value: &Value) -> Option<&Value> {
    if value.find("dims").is_some() {
        return Some(value);
    }
    match value {
        Value::Map(entries) => entries.iter().find_map(|(_, value)| find_torus(value)),
        Value::List(items) => items.iter().find_map(find_torus),
        Value::Text(_) => None,
    }
}

fn numbers(value: Option<&Value>) -> Option<[u32; 3]> {
    let value = value?;
    let mut found = [0; 3];
    for (number, key) in found.iter_mut().zip(["x", "y", "z"]) {
        *number = value.text_of(key)?.parse().ok()?;
    }
    Some(found)
}

/// Makes a torus. In Slurm x counts fastest, here the last coordinate does. Places that no host has get no name.
fn of_torus(torus: &Value, network: &mut Network, expand: Expand<'_>) -> Result<Topology, Problem> {
    let dims = numbers(torus.find("dims")).ok_or_else(|| "dims needs the numbers x, y and z".to_owned())?;
    let [x, y, z] = dims;
    let shape = Torus::new(&[z, y, x], true)?;
    let mut names = vec![String::new(); shape.places() as usize];
    let mut fill = |list: &str, anchor: [u32; 3], size: [u32; 3]| -> Result<(), String> {
        let hosts = network.expand(list, expand)?;
        let count = size.iter().try_fold(1u64, |count, size| count.checked_mul(u64::from(*size)));
        if count != Some(hosts.len() as u64) || (0..3).any(|at| anchor[at].saturating_add(size[at]) > dims[at]) {
            return Err(format!("the torus has no room for {list}, or more"));
        }
        for (host, at) in hosts.into_iter().zip(0u32..) {
            let [dx, dy, dz] = [at % size[0], at / size[0] % size[1], at / size[0] / size[1]];
            let place = (anchor[0] + dx) + (anchor[1] + dy) * x + (anchor[2] + dz) * x * y;
            names[place as usize] = host;
        }
        Ok(())
    };
    match torus.find("regions") {
        None => fill(&torus.text_of("nodes").unwrap_or_default(), [0; 3], dims)?,
        Some(regions) => {
            for region in regions.items() {
                let wrong = || "a region needs anchor, dims and nodes".to_owned();
                let anchor = numbers(region.find("anchor")).ok_or_else(wrong)?;
                let size = numbers(region.find("dims")).ok_or_else(wrong)?;
                fill(&region.text_of("nodes").unwrap_or_default(), anchor, size)?;
            }
        }
    }
    let text = format!("torus of Slurm: {x}x{y}x{z}");
    Ok(Topology { shape: Shape::Torus(shape), names, text })
}

/// Returns the line before a `#` that is not quoted and begins a word.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (at, character) in line.char_indices() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (None, '"' | '\'') => quote = Some(character),
            (None, '#') if before.is_whitespace() => return &line[..at],
            _ => {}
        }
        before = character;
    }
    line
}

#[derive(Clone, Copy)]
struct Line<'a> {
    number: usize,
    indent: usize,
    text: &'a str,
}

struct Reader<'a> {
    lines: Vec<Line<'a>>,
    at: usize,
}

impl Reader<'_> {
    fn error(&self, reason: &str) -> TopologyError {
        let line = self.lines.get(self.at).or(self.lines.last()).map_or(0, |line| line.number);
        TopologyError::Line { line, reason: reason.to_owned() }
    }

    /// Reads all lines of this indentation, and the more indented ones between them.
    fn block(&mut self, indent: usize, depth: usize) -> Result<Value, TopologyError> {
        if depth > DEPTH_MAX {
            return Err(self.error("the nesting is too deep"));
        }
        let first = self.lines[self.at].text;
        if first == "-" || first.starts_with("- ") {
            return self.list(indent, depth);
        }
        if key_of(first).is_none() {
            self.at += 1;
            return flow(first, depth).ok_or_else(|| self.error("the line has no key"));
        }
        let mut entries = Vec::new();
        while let Some(line) = self.lines.get(self.at).copied().filter(|line| line.indent == indent) {
            let Some((key, rest)) = key_of(line.text) else { return Err(self.error("the line has no key")) };
            let key = unquoted(key).to_owned();
            let value = if rest.is_empty() {
                self.at += 1;
                let next = self.lines.get(self.at).copied();
                let is_below =
                    |next: &Line<'_>| next.indent > indent || next.indent == indent && next.text.starts_with('-');
                match next.filter(is_below) {
                    Some(next) => self.block(next.indent, depth + 1)?,
                    None => Value::Text(String::new()),
                }
            } else {
                let value = flow(rest, depth).ok_or_else(|| self.error("the value is not understood"))?;
                self.at += 1;
                value
            };
            entries.push((key, value));
        }
        Ok(Value::Map(entries))
    }

    fn list(&mut self, indent: usize, depth: usize) -> Result<Value, TopologyError> {
        let mut items = Vec::new();
        while let Some(line) = self.lines.get_mut(self.at).filter(|line| line.indent == indent) {
            let Some(rest) = line.text.strip_prefix('-') else { break };
            let content = rest.trim_start();
            if content.is_empty() {
                self.at += 1;
                match self.lines.get(self.at).copied().filter(|next| next.indent > indent) {
                    Some(next) => items.push(self.block(next.indent, depth + 1)?),
                    None => items.push(Value::Text(String::new())),
                }
                continue;
            }
            // The item goes on as a block that begins behind the dash.
            line.indent = indent + line.text.len() - content.len();
            line.text = content;
            let inner = line.indent;
            items.push(self.block(inner, depth + 1)?);
        }
        Ok(Value::List(items))
    }
}

/// Splits `key: value` or `key:`.
fn key_of(text: &str) -> Option<(&str, &str)> {
    if text.starts_with(['[', '{']) {
        return None;
    }
    match text.split_once(": ") {
        Some((key, rest)) => Some((key.trim(), rest.trim())),
        None => text.strip_suffix(':').map(|key| (key.trim(), "")),
    }
}

fn unquoted(text: &str) -> &str {
    let quoted = |quote: char| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    quoted('"').or_else(|| quoted('\'')).unwrap_or(text)
}

/// Parses a value on one line.
fn flow(text: &str, depth: usize) -> Option<Value> {
    if depth > DEPTH_MAX {
        return None;
    }
    if let Some(inside) = text.strip_prefix('[') {
        let parts = split_flow(inside.strip_suffix(']')?);
        return parts.into_iter().map(|part| flow(part, depth + 1)).collect::<Option<_>>().map(Value::List);
    }
    if let Some(inside) = text.strip_prefix('{') {
        let entry = |part: &str| {
            let (key, value) = part.split_once(':')?;
            Some((unquoted(key.trim()).to_owned(), flow(value.trim(), depth + 1)?))
        };
        return split_flow(inside.strip_suffix('}')?).into_iter().map(entry).collect::<Option<_>>().map(Value::Map);
    }
    // Anchors, aliases, tags, and text over several lines.
    (!text.starts_with(['&', '*', '!', '|', '>'])).then(|| Value::Text(unquoted(text).to_owned()))
}

/// Splits at the commas that are in no brackets or quotes.
fn split_flow(text: &str) -> Vec<&str> {
    let (mut depth, mut quote, mut start) = (0usize, None, 0);
    let mut parts = Vec::new();
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(character),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            (None, _) => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}
