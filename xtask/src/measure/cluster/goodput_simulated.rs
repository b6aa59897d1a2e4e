//! What a second hop loses, and what credits and hand-back gain, in the simulator: one, two and three nodes with the same lanes, in four
//! worlds, each with and without credits and hand-back.
//!
//! The worlds: where nothing disturbs (what the second hop loses); as on a machine that others share, with pauses of whole nodes, late
//! timers and frames that take their time; there with a long bound; and with nodes that take four times as long for half a second now
//! and then, under eight gateways. Live (`cluster-goodput`) there are two gateways, and runs scatter by more than the first three worlds
//! differ; in the last one nodes do fall behind, and eight gateways send on views of which each knows a part. No goodput at 99 % is to be
//! had there, so it is told at 95 %, and beside it what is in time at three loads.
//!
//! Bounds: 10 % lost by three nodes; a twentieth by credits and by hand-back where they are for nothing. Where nodes fall behind they
//! must be for something: without hand-back, and without either, less than 95 % of the goodput with both is left. The short form
//! only shows that everything is simulated.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::goodput::{NEITHER, NO_CREDITS, NO_HAND_BACK, USUAL, Way, lost_of};
use crate::command::{output, program};
use crate::measure::{Check, Context, Measure, Outcome};

pub(crate) const MEASURE: Measure = Measure {
    name: "cluster-goodput-simulated",
    what: "goodput of 1, 2 and 3 simulated nodes with the same lanes, with and without credits and hand-back: undisturbed, with pauses, with a long bound, with nodes that fall behind",
    run: measure,
};

const WAYS: [Way; 4] = [USUAL, NO_HAND_BACK, NO_CREDITS, NEITHER];

/// Where it is simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum World {
    /// Nothing disturbs.
    Quiet,
    /// Nodes pause, timers are late, what is known is old.
    Shared,
    /// The same with five times the latency bound.
    Long,
    /// Nodes fall behind, under eight gateways.
    Behind,
}

const WORLDS: [World; 4] = [World::Quiet, World::Shared, World::Long, World::Behind];

impl World {
    fn name(self) -> &'static str {
        match self {
            Self::Quiet => "undisturbed",
            Self::Shared => "with pauses and noise",
            Self::Long => "the same within 107 ms",
            Self::Behind => "at 95 % within 43 ms, under 8 gateways, with nodes that fall behind",
        }
    }

    fn is_of(self, setup: &Value) -> bool {
        let is = |what: &str| setup["noise"][what].is_object();
        let (pauses, slow, long) = (is("pauses"), is("slow"), setup["bound"].as_f64() > Some(10.0));
        match self {
            Self::Quiet => !pauses && !slow,
            Self::Shared => pauses && !long,
            Self::Long => pauses && long,
            Self::Behind => slow,
        }
    }
}

fn measure(context: &Context) -> Result<Outcome> {
    let queries = context.choose("10000", "100");
    let rows = output(program(&context.root, context.bench_program("sim-goodput")?).arg(queries))?;
    let rows: Value = serde_json::from_str(&rows).context("sim-goodput wrote no JSON")?;
    let told = WORLDS.iter().flat_map(|world| WAYS.iter().map(move |way| (*world, *way)));
    let told = told.map(|(world, way)| {
        let of = |nodes| goodput(&rows, world, nodes, way);
        Ok(format!("{} {} {:.0}, {:.0} and {:.0}", world.name(), way.name(), of(1)?, of(2)?, of(3)?))
    });
    let told = told.collect::<Result<Vec<_>>>()?.join("; ");
    let behind = WAYS.iter().map(|way| Ok(format!("{} {}", way.name(), in_time(&rows, *way)?)));
    let behind = behind.collect::<Result<Vec<_>>>()?.join("; ");
    let checks = if context.short { checks_of_short(&rows)? } else { checks_of_full(&rows)? };
    Ok(Outcome {
        seeds: vec![1, 2, 3],
        repetitions: json!([{"simulated": rows}]),
        result: format!(
            "queries a second with 99 % in 21 ms, simulated (the least of 3 seeds, {queries} queries each; 1, 2 and 3 nodes with 6 lanes \
             altogether): {told}. There, of those asked at three loads, in time at 3 nodes: {behind}"
        ),
        summary: json!({"queries": queries, "simulated": true}),
        checks,
    })
}

fn row(rows: &Value, world: World, nodes: u64, way: Way) -> Result<&Value> {
    let rows = rows.as_array().context("sim-goodput tells no rows")?;
    let is = |setup: &Value| {
        let cluster = setup["nodes"] == nodes && world.is_of(setup);
        cluster && setup["credits"] == way.credits && setup["hand_back"] == way.hand_back
    };
    rows.iter().find(|row| is(&row["setup"])).context("sim-goodput lacks a setup")
}

fn goodput(rows: &Value, world: World, nodes: u64, way: Way) -> Result<f64> {
    row(rows, world, nodes, way)?["goodput"].as_f64().context("sim-goodput tells no goodput")
}

/// What is in time where nodes fall behind.
fn in_time(rows: &Value, way: Way) -> Result<String> {
    let told =
        row(rows, World::Behind, 3, way)?["in_time"].as_array().context("sim-goodput tells no loads")?;
    let told = told.iter().map(|load| {
        let (load, share) = load[0].as_f64().zip(load[1].as_f64()).context("a load and a share")?;
        Ok(format!("{:.2} % at {:.0} %", share * 100.0, load * 100.0))
    });
    Ok(told.collect::<Result<Vec<_>>>()?.join(", "))
}

/// Everything is there, and carries something where nothing disturbs.
fn checks_of_short(rows: &Value) -> Result<Vec<Check>> {
    let lost = lost_of(goodput(rows, World::Quiet, 3, USUAL)?, goodput(rows, World::Quiet, 1, USUAL)?);
    Ok(vec![Check { what: "lost by three nodes", value: lost, limit: 0.3, unit: "of one's goodput" }])
}

fn checks_of_full(rows: &Value) -> Result<Vec<Check>> {
    let of = |world, way| goodput(rows, world, 3, way);
    let lost = |what, way| {
        let value = lost_of(of(World::Shared, USUAL)?, of(World::Shared, way)?);
        Ok::<_, anyhow::Error>(Check { what, value, limit: 0.05, unit: "of the goodput without" })
    };
    let left = |what, way| {
        let value = 1.0 - lost_of(of(World::Behind, way)?, of(World::Behind, USUAL)?);
        Ok::<_, anyhow::Error>(Check { what, value, limit: 0.95, unit: "of the goodput with both" })
    };
    Ok(vec![
        Check {
            what: "lost by three nodes",
            value: lost_of(of(World::Quiet, USUAL)?, goodput(rows, World::Quiet, 1, USUAL)?),
            limit: 0.1,
            unit: "of one's goodput",
        },
        lost("lost by credits", NO_CREDITS)?,
        lost("lost by hand-back", NO_HAND_BACK)?,
        left("left without hand-back, where nodes fall behind", NO_HAND_BACK)?,
        left("left without either, where nodes fall behind", NEITHER)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(goodput: impl Fn(World, Way) -> f64) -> Value {
        let row = |world: World, nodes: u64, way: Way| {
            let (pauses, slow) = (matches!(world, World::Shared | World::Long), world == World::Behind);
            let noise = json!({"pauses": pauses.then(|| json!({})), "slow": slow.then(|| json!({}))});
            let bound = if world == World::Long { 15.0 } else { 3.0 };
            let setup = json!({
                "nodes": nodes, "credits": way.credits, "hand_back": way.hand_back, "noise": noise, "bound": bound,
            });
            json!({"setup": setup, "goodput": goodput(world, way), "in_time": [[0.5, 0.987_61]]})
        };
        let all = WORLDS.iter().flat_map(|world| WAYS.iter().map(move |way| (*world, *way)));
        all.flat_map(|(world, way)| [1, 2, 3].map(|nodes| row(world, nodes, way))).collect()
    }

    #[test]
    fn credits_and_hand_back_must_be_for_something_where_nodes_fall_behind_and_cost_little_elsewhere() {
        let missed = |goodput: &dyn Fn(World, Way) -> f64| {
            let checks = checks_of_full(&rows(goodput)).unwrap();
            checks.iter().filter(|check| !check.holds()).map(|check| check.what).collect::<Vec<_>>()
        };
        let good = |world, way| if world == World::Behind && way != USUAL { 80.0 } else { 100.0 };
        assert_eq!(missed(&good), [""; 0]);
        let nothing = missed(&|_, _| 100.0);
        assert_eq!(nothing.len(), 2, "{nothing:?}");
        let costs =
            |world, way| if way == NO_CREDITS && world == World::Shared { 120.0 } else { good(world, way) };
        assert_eq!(missed(&costs), ["lost by credits"]);
        assert!(checks_of_short(&rows(good)).unwrap().iter().all(Check::holds));
    }

    #[test]
    fn loads_are_told_as_shares() {
        assert_eq!(in_time(&rows(|_, _| 1.0), USUAL).unwrap(), "98.76 % at 50 %");
    }
}
