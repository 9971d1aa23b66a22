//! Collects findings, within bounds.

use std::collections::BTreeSet;

use sandbox_core::Finding;

use super::{ScanLanguage, ScanPolicy, ScanRule, scan_into};

/// Findings of one scan. More are counted.
const MAX_FINDINGS: usize = 100;

/// How deep code may be in code: a shell line in Python in a shell line.
const MAX_NESTED: u32 = 3;

/// The findings of one scan so far.
#[derive(Debug)]
pub(super) struct Findings<'a> {
    pub(super) policy: &'a ScanPolicy,
    found: BTreeSet<(u64, ScanRule, String)>,
    dropped: u64,
    /// Set in code that is a string of other code: all of its lines are that line.
    outer_line: Option<u64>,
    nested: u32,
}

impl<'a> Findings<'a> {
    pub(super) fn new(policy: &'a ScanPolicy) -> Self {
        Self { policy, found: BTreeSet::new(), dropped: 0, outer_line: None, nested: 0 }
    }

    /// Adds a finding of a line, counted from 0.
    pub(super) fn add(&mut self, rule: ScanRule, row: usize, reason: impl Into<String>) {
        if !self.policy.rules.contains(&rule) {
            return;
        }
        let line = self.outer_line.unwrap_or(row as u64 + 1);
        let finding = (line, rule, reason.into());
        if self.found.len() < MAX_FINDINGS {
            self.found.insert(finding);
        } else if !self.found.contains(&finding) {
            self.dropped += 1;
        }
    }

    /// Adds a finding when the import of a module is not allowed.
    pub(super) fn check_import(&mut self, module: &str, row: usize) {
        if let Some(reason) = self.policy.refused_import(module) {
            self.add(ScanRule::Import, row, reason);
        }
    }

    /// Adds a finding when a path leads out of the working directory. `is_whole` is false for the beginning of a path.
    pub(super) fn check_path(&mut self, path: &str, is_whole: bool, row: usize) {
        if super::text::leads_outside(path, is_whole, &self.policy.directories) {
            let shown: String = path.chars().take(80).collect();
            let reason = format!("`{shown}` is outside of the working directory");
            self.add(ScanRule::OutsideFile, row, reason);
        }
    }

    /// Scans code that is a string in other code.
    pub(super) fn look_inside(&mut self, text: &str, language: ScanLanguage, row: usize) {
        if self.nested >= MAX_NESTED {
            let reason = "code in code in code is not looked at";
            return self.add(ScanRule::Unread, row, reason);
        }
        let outer = self.outer_line;
        self.outer_line = Some(outer.unwrap_or(row as u64 + 1));
        self.nested += 1;
        scan_into(text, language, self);
        self.nested -= 1;
        self.outer_line = outer;
    }

    pub(super) fn finish(self) -> Vec<Finding> {
        let last = self.found.last().map_or(0, |(line, ..)| *line);
        let all = self.found.into_iter().map(|(line, rule, reason)| Finding {
            rule: rule.as_str().to_owned(),
            line,
            reason,
        });
        let more = (self.dropped > 0).then(|| Finding {
            rule: ScanRule::Unread.as_str().to_owned(),
            line: last,
            reason: format!("{} more findings are not listed", self.dropped),
        });
        all.chain(more).collect()
    }
}
