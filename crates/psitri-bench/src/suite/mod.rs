//! Many cases in one go, and what they leave behind: [`results`].
pub mod results;
