//! Profiles of example jobs.
