//! The two states of a simulated disk, volatile and durable, and what may become of them.
//!
//! Thread safety: behind the disk's lock, apart from stores through mappings.
//!
//! Invariants:
//! 1. An image is usable up to the file's volatile length, rounded up to a sector.
//! 2. Bytes of `durable` beyond its end count as zeros; it may hold bytes beyond `durable_len`, which a power loss cuts off.
#![allow(unsafe_code)] // copies to and from images
use super::{Arc, BTreeMap, BTreeSet, FILE_BYTES_MAX, Image, Random, SECTOR_BYTES, Shape, io};

/// Sectors of a page of memory.
const PAGE_SECTORS: u64 = 8;
const ZERO_SECTOR: [u8; SECTOR_BYTES] = [0; SECTOR_BYTES];

#[derive(Debug, Default)]
pub(super) struct Disk {
    pub names: BTreeMap<String, u64>,
    pub inodes: BTreeMap<u64, Inode>,
    durable_names: BTreeMap<String, u64>,
    unsynced: Vec<DirectoryChange>,
    inode_next: u64,
}

#[derive(Clone, Debug)]
pub(super) enum DirectoryChange {
    Create {
        name: String,
        inode: u64,
    },
    Remove {
        name: String,
        inode: u64,
    },
    Rename {
        from: String,
        to: String,
        inode: u64,
    },
}

impl DirectoryChange {
    fn inode(&self) -> u64 {
        let (DirectoryChange::Create { inode, .. }
        | DirectoryChange::Remove { inode, .. }
        | DirectoryChange::Rename { inode, .. }) = self;
        *inode
    }

    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            DirectoryChange::Create { name, inode } => {
                names.insert(name.clone(), *inode);
            }
            DirectoryChange::Remove { name, inode } => {
                if names.get(name) == Some(inode) {
                    names.remove(name);
                }
            }
            DirectoryChange::Rename { from, to, inode } => {
                if names.get(from) == Some(inode) {
                    names.remove(from);
                }
                names.insert(to.clone(), *inode);
            }
        }
    }
}

impl Disk {
    pub fn inode(&mut self, inode: u64) -> &mut Inode {
        self.inodes
            .get_mut(&inode)
            .expect("inodes are never forgotten while the disk lives")
    }

    pub fn create(&mut self, name: &str) -> io::Result<u64> {
        let inode = self.inode_next;
        self.inodes.insert(inode, Inode::new()?);
        self.inode_next += 1;
        self.names.insert(name.to_owned(), inode);
        self.unsynced.push(DirectoryChange::Create {
            name: name.to_owned(),
            inode,
        });
        Ok(inode)
    }

    pub fn remove(&mut self, name: &str) {
        if let Some(inode) = self.names.remove(name) {
            self.unsynced.push(DirectoryChange::Remove {
                name: name.to_owned(),
                inode,
            });
        }
    }

    pub fn rename(&mut self, from: &str, to: &str) {
        if let Some(inode) = self.names.remove(from) {
            self.names.insert(to.to_owned(), inode);
            self.unsynced.push(DirectoryChange::Rename {
                from: from.to_owned(),
                to: to.to_owned(),
                inode,
            });
        }
    }

    pub fn sync_dir(&mut self) {
        self.durable_names = self.names.clone();
        self.unsynced.clear();
    }

    /// Blocks of files that have a name.
    pub fn allocated_bytes(&self) -> u64 {
        let linked: BTreeSet<u64> = self.names.values().copied().collect();
        linked
            .iter()
            .map(|inode| self.inodes[inode].shape.allocated_bytes())
            .sum()
    }

    /// Some of what is dirty becomes durable, as it pleases the system.
    pub fn write_back_some(&mut self, random: &mut Random) {
        if random.one_in(8) {
            // A journal commits names in order.
            self.sync_dir();
        }
        let linked: Vec<u64> = self.names.values().copied().collect();
        if linked.is_empty() {
            return;
        }
        let inode = linked[random.below(linked.len() as u64) as usize];
        let one_in = 1 + random.below(4);
        self.inode(inode).write_back(random, one_in);
    }

    /// A copy with images of its own, of what a later boot may find.
    pub fn copy(&self) -> Disk {
        let unsynced = self.unsynced.iter().map(DirectoryChange::inode);
        let named = self.names.values().chain(self.durable_names.values());
        let kept: BTreeSet<u64> = named.copied().chain(unsynced).collect();
        Disk {
            names: self.names.clone(),
            inodes: kept
                .into_iter()
                .map(|inode| (inode, self.inodes[&inode].copy()))
                .collect(),
            durable_names: self.durable_names.clone(),
            unsynced: self.unsynced.clone(),
            inode_next: self.inode_next,
        }
    }

    /// What the next boot finds.
    pub fn after_power_loss(&self, random: &mut Random) -> Disk {
        let mut names = self.durable_names.clone();
        // Each outcome class gets its share: nothing more, everything, any subset.
        let names_one_in = [0, 1, 2][random.below(3) as usize];
        for change in &self.unsynced {
            if names_one_in > 0 && random.one_in(names_one_in) {
                change.apply(&mut names);
            }
        }
        let kept: BTreeSet<u64> = names.values().copied().collect();
        let sectors_one_in = [0, 1, 2, 2, 8][random.below(5) as usize];
        let inodes = kept
            .into_iter()
            .filter_map(|inode| {
                Some((
                    inode,
                    self.inodes
                        .get(&inode)?
                        .after_power_loss(random, sectors_one_in),
                ))
            })
            .collect();
        Disk {
            durable_names: names.clone(),
            names,
            inodes,
            unsynced: Vec::new(),
            inode_next: self.inode_next,
        }
    }
}

/// One file.
#[derive(Debug)]
pub(super) struct Inode {
    pub image: Arc<Image>,
    pub shape: Shape,
    durable: Vec<u8>,
    durable_len: u64,
    /// Sectors that a failed sync did not write and calls clean, with their content at that time.
    dropped: BTreeMap<u64, [u8; SECTOR_BYTES]>,
}

fn new_image() -> io::Result<Arc<Image>> {
    Image::new(FILE_BYTES_MAX).map(Arc::new)
}

impl Inode {
    fn new() -> io::Result<Inode> {
        let image = new_image()?;
        Ok(Inode {
            image,
            shape: Shape::default(),
            durable: Vec::new(),
            durable_len: 0,
            dropped: BTreeMap::new(),
        })
    }

    fn sector_count(&self) -> u64 {
        self.shape.len.div_ceil(SECTOR_BYTES as u64)
    }

    fn volatile_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.sector_count() as usize * SECTOR_BYTES];
        // Growth is by larger units than a sector, so the last one is there as a whole.
        // SAFETY: usable by invariant 1; concurrent stores come out old or new, as with a real power loss.
        unsafe { self.image.read(0, &mut bytes) };
        bytes
    }

    fn durable_sector(&self, sector: u64) -> &[u8] {
        let start = sector as usize * SECTOR_BYTES;
        self.durable
            .get(start..start + SECTOR_BYTES)
            .unwrap_or(&ZERO_SECTOR)
    }

    /// Sectors whose durable content is another.
    fn differing(&self, volatile: &[u8]) -> Vec<u64> {
        let sectors = (0..).zip(volatile.chunks_exact(SECTOR_BYTES));
        sectors
            .filter(|(sector, bytes)| *bytes != self.durable_sector(*sector))
            .map(|(sector, _)| sector)
            .collect()
    }

    /// Sectors that a sync would write.
    fn dirty(&self, volatile: &[u8]) -> Vec<u64> {
        let mut sectors = self.differing(volatile);
        sectors.retain(|sector| {
            self.dropped
                .get(sector)
                .is_none_or(|bytes| bytes != sector_of(volatile, *sector))
        });
        sectors
    }

    fn make_durable(&mut self, volatile: &[u8], sector: u64) {
        let start = sector as usize * SECTOR_BYTES;
        if self.durable.len() < start + SECTOR_BYTES {
            self.durable.resize(start + SECTOR_BYTES, 0);
        }
        self.durable[start..start + SECTOR_BYTES].copy_from_slice(sector_of(volatile, sector));
        self.dropped.remove(&sector);
    }

    pub fn sync(&mut self) {
        let volatile = self.volatile_bytes();
        for sector in self.dirty(&volatile) {
            self.make_durable(&volatile, sector);
        }
        // What was cut off reads as zeros if the file grows again.
        self.durable.truncate(volatile.len());
        self.durable_len = self.shape.len;
    }

    pub fn write_back(&mut self, random: &mut Random, one_in: u64) {
        let volatile = self.volatile_bytes();
        for sector in some_of(self.dirty(&volatile), random, one_in) {
            self.make_durable(&volatile, sector);
        }
    }

    pub fn fail_sync(&mut self, random: &mut Random) {
        let volatile = self.volatile_bytes();
        let one_in = [1, 2, u64::MAX][random.below(3) as usize];
        for sector in self.dirty(&volatile) {
            if random.one_in(one_in) {
                self.make_durable(&volatile, sector);
            } else {
                let mut bytes = ZERO_SECTOR;
                bytes.copy_from_slice(sector_of(&volatile, sector));
                self.dropped.insert(sector, bytes);
            }
        }
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = offset + bytes.len() as u64;
        self.image.grow(end)?;
        // SAFETY: usable, just grown; users of the same bytes are ordered by the caller (trait contract).
        unsafe { self.image.write(offset, bytes) };
        self.shape.add_blocks(offset, bytes.len() as u64);
        self.shape.len = self.shape.len.max(end);
        // Written again, so dirty again, even when the content is the same.
        for sector in offset / SECTOR_BYTES as u64..end.div_ceil(SECTOR_BYTES as u64) {
            self.dropped.remove(&sector);
        }
        Ok(())
    }

    pub fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.image.grow(len)?;
        let old_len = self.shape.len;
        if len < old_len {
            // SAFETY: usable by invariant 1; bytes past the new end belong to nobody.
            unsafe { self.image.zero(len, (old_len - len) as usize) };
            self.shape.drop_blocks(
                len,
                old_len.next_multiple_of(super::super::memory::BLOCK_BYTES),
            );
        }
        self.shape.len = len;
        Ok(())
    }

    pub fn punch_hole(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.shape.len);
        if offset < end {
            // SAFETY: usable by invariant 1; the caller gave the range up.
            unsafe { self.image.zero(offset, (end - offset) as usize) };
            self.shape.drop_blocks(offset, end);
        }
    }

    pub fn damage(&mut self, offset: u64, bytes: &[u8]) {
        let end = (offset + bytes.len() as u64).min(self.shape.len);
        let bytes = &bytes[..end.saturating_sub(offset) as usize];
        if bytes.is_empty() {
            return;
        }
        // SAFETY: usable by invariant 1; the test does this while nobody uses the file.
        unsafe { self.image.write(offset, bytes) };
        if self.durable.len() < end as usize {
            self.durable
                .resize((end as usize).next_multiple_of(SECTOR_BYTES), 0);
        }
        self.durable[offset as usize..end as usize].copy_from_slice(bytes);
    }

    fn copy(&self) -> Inode {
        let mut copy = self.with_content(&self.volatile_bytes(), self.shape.clone());
        copy.durable = self.durable.clone();
        copy.durable_len = self.durable_len;
        copy.dropped = self.dropped.clone();
        copy
    }

    /// A file of its own with this content.
    fn with_content(&self, bytes: &[u8], shape: Shape) -> Inode {
        let image = new_image().expect("addresses for a test");
        if !bytes.is_empty() {
            image
                .grow(bytes.len() as u64)
                .expect("no longer than the original");
            // SAFETY: usable, just grown, and known to nobody else.
            unsafe { image.write(0, bytes) };
        }
        Inode {
            image,
            shape,
            durable: Vec::new(),
            durable_len: 0,
            dropped: BTreeMap::new(),
        }
    }

    fn after_power_loss(&self, random: &mut Random, one_in: u64) -> Inode {
        let volatile = self.volatile_bytes();
        let (low, high) = (
            self.durable_len.min(self.shape.len),
            self.durable_len.max(self.shape.len),
        );
        let len = match random.below(3) {
            0 => self.durable_len,
            1 => self.shape.len,
            _ => low + random.below(high - low + 1),
        };
        let mut bytes = self.durable.clone();
        bytes.resize((high as usize).next_multiple_of(SECTOR_BYTES), 0);
        // Dropped sectors are lost: the system thinks it has written them.
        for sector in some_of(self.dirty(&volatile), random, one_in) {
            let start = sector as usize * SECTOR_BYTES;
            bytes[start..start + SECTOR_BYTES].copy_from_slice(sector_of(&volatile, sector));
        }
        bytes.truncate((len as usize).next_multiple_of(SECTOR_BYTES));
        bytes[len as usize..].fill(0);
        let mut shape = self.shape.clone();
        shape.drop_blocks(
            len,
            high.next_multiple_of(super::super::memory::BLOCK_BYTES),
        );
        shape.len = len;
        let mut file = self.with_content(&bytes, shape);
        (file.durable, file.durable_len) = (bytes, len);
        file
    }
}

/// One in so many of these sectors, or of the pages that they lie in: a system writes pages, a disk sectors. 0: none.
fn some_of(mut sectors: Vec<u64>, random: &mut Random, one_in: u64) -> Vec<u64> {
    let unit = if random.one_in(2) { 1 } else { PAGE_SECTORS };
    let (mut last, mut chosen) = (None, false);
    sectors.retain(|sector| {
        if last != Some(sector / unit) {
            chosen = one_in > 0 && random.one_in(one_in);
            last = Some(sector / unit);
        }
        chosen
    });
    sectors
}

fn sector_of(bytes: &[u8], sector: u64) -> &[u8] {
    let start = sector as usize * SECTOR_BYTES;
    &bytes[start..start + SECTOR_BYTES]
}
