//! What is announced, and what is claimed of that.

use super::{Bad, ClassHead, ReportHead, prefer, prefer_code};
use crate::seam::Announcement;
use modelless_types::{AppId, Bytes, CostPer1k, Micros, Priority, QueryKey, TenantId};
use wincode::{SchemaRead, SchemaWrite};

#[derive(SchemaRead, SchemaWrite)]
pub(crate) struct AnnounceHead {
    key: u64,
    tenant: u32,
    app: u32,
    class: ClassHead,
    deadline_in: u64,
    expires_in: u64,
    spent: u64,
    max_cost: Option<u64>,
    prefer: u8,
    priority: u8,
    best_effort: bool,
    decoded: u64,
    part_ppm: u32,
    quickest: u64,
}

impl From<&Announcement> for AnnounceHead {
    fn from(told: &Announcement) -> Self {
        let Announcement {
            key,
            tenant,
            app,
            class,
            deadline_in,
            expires_in,
            spent,
            max_cost,
            prefer,
            priority,
            best_effort,
            decoded,
            part_ppm,
            quickest,
        } = told;
        Self {
            key: key.0,
            tenant: tenant.0,
            app: app.0,
            class: (*class).into(),
            deadline_in: deadline_in.0,
            expires_in: expires_in.0,
            spent: spent.0,
            max_cost: max_cost.map(|cost| cost.0),
            prefer: prefer_code(*prefer),
            priority: priority.level(),
            best_effort: *best_effort,
            decoded: decoded.0,
            part_ppm: *part_ppm,
            quickest: quickest.0,
        }
    }
}

impl AnnounceHead {
    pub(crate) fn announcement(self) -> Result<Announcement, Bad> {
        Ok(Announcement {
            key: QueryKey(self.key),
            tenant: TenantId(self.tenant),
            app: AppId(self.app),
            class: self.class.into(),
            deadline_in: Micros(self.deadline_in),
            expires_in: Micros(self.expires_in),
            spent: Micros(self.spent),
            max_cost: self.max_cost.map(CostPer1k),
            prefer: prefer(self.prefer)?,
            priority: Priority::from_level(self.priority).ok_or("an unknown priority")?,
            best_effort: self.best_effort,
            decoded: Bytes(self.decoded),
            part_ppm: self.part_ppm,
            quickest: Micros(self.quickest),
        })
    }
}

#[derive(SchemaRead, SchemaWrite)]
pub(crate) struct ClaimHead {
    pub(crate) queries: Vec<u64>,
    pub(crate) lanes: u16,
    pub(crate) report: ReportHead,
}
