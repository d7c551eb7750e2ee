//! Other engines behind the traits of [`psitri_bench::engine`], one file each.
//!
//! Every adapter says in its header which settings it uses and why: those that its engine documents as fast, at the durability that the
//! run asks for, with snapshots that are fresh. An adapter is timed only if it passes the conformance tests.
#![deny(unsafe_code)]

use psitri_bench::engines::model::Model;
use psitri_bench::engines::psitri::{Psitri, PsitriDirect};

pub mod engines;

psitri_bench::engines! {
    /// PsiTri and every engine that this program was built with.
    pub struct Peers {
        "psitri" => Psitri,
        "psitri-direct" => PsitriDirect,
        "model" => Model,
    }
}
