//! Finds the ranks of one node in `PMI_process_mapping`.

/// A block of the mapping: `ppn` consecutive ranks on each of `count` nodes from `start`.
#[derive(Copy, Clone, Debug)]
struct Block {
    start: u64,
    count: u64,
    ppn: u64,
}

/// Returns the ranks on the node of `rank` in ascending order; `None` if `mapping` is malformed.
///
/// If the blocks cover fewer ranks than there are, the rest start over at the first block that starts
/// at node 0, or else at the first block. This is how MPICH reads the mappings of other servers;
/// ScELA's mappings cover all ranks.
pub(crate) fn ranks_on_same_node(rank: u32, size: u32, mapping: &str) -> Option<Vec<u32>> {
    let blocks = parse(mapping)?;
    let again = blocks.iter().position(|block| block.start == 0).unwrap_or(0);
    let mut runs: Vec<(u64, u32, u32)> = Vec::new();
    let (mut next, mut round) = (0_u32, &blocks[..]);
    while next < size {
        for block in round {
            for node in 0..block.count {
                let end = u64::from(next) + block.ppn;
                let end = u32::try_from(end).unwrap_or(size).min(size);
                runs.push((block.start + node, next, end));
                next = end;
                if next == size {
                    break;
                }
            }
        }
        round = &blocks[again..];
    }
    let own = runs.iter().find(|(_, first, end)| (*first..*end).contains(&rank))?.0;
    Some(runs.into_iter().filter(|(node, ..)| *node == own).flat_map(|(_, first, end)| first..end).collect())
}

fn parse(mapping: &str) -> Option<Vec<Block>> {
    let blocks = mapping.trim().strip_prefix("(vector,(")?.strip_suffix("))")?;
    let block = |text: &str| {
        let mut numbers = text.split(',').map(|number| number.trim().parse::<u32>().ok().map(u64::from));
        let block = Block { start: numbers.next()??, count: numbers.next()??, ppn: numbers.next()?? };
        (numbers.next().is_none() && block.count > 0 && block.ppn > 0).then_some(block)
    };
    blocks.split("),(").map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rank: u32, size: u32, mapping: &str, expected: &[u32]) {
        assert_eq!(ranks_on_same_node(rank, size, mapping).as_deref(), Some(expected));
    }

    #[test]
    fn mappings_are_read_as_mpich_reads_them() {
        check(1, 4, "(vector,(0,1,4))", &[0, 1, 2, 3]);
        check(2, 4, "(vector,(0,2,2))", &[2, 3]);
        check(3, 4, "(vector,(0,4,1))", &[3]);
        check(2, 4, "(vector,(0,2,1),(0,2,1))", &[0, 2]);
        check(2, 4, "(vector,(0,2,1))", &[0, 2]);
        check(3, 4, "(vector,(0,1,1),(1,1,3))", &[1, 2, 3]);
        check(3, 4, "(vector,(5,1,2),(7,1,2))", &[2, 3]);
        check(3, 4, "(vector,(1,2,1),(0,1,1))", &[2, 3]);
        check(0, 4, "(vector,(0,1,8))", &[0, 1, 2, 3]);
    }

    #[test]
    fn malformed_mappings_are_rejected() {
        for mapping in
            ["", "(vector)", "(matrix,(0,1,1))", "(vector,[(0,2,1)]x2)", "(vector,(0,0,1))", "(vector,(0,1))"]
        {
            assert_eq!(ranks_on_same_node(0, 2, mapping), None, "{mapping}");
        }
        assert_eq!(ranks_on_same_node(2, 2, "(vector,(0,1,2))"), None);
        check(0, 2, "(vector,(0,4294967295,4294967295))", &[0, 1]);
    }
}
