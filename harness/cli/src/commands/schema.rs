// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask schema`: the JSON Schemas of all formats, made from their types.

use super::{bisect, cache, defaults::Defaults, exit, link, messages::Message, output};
use clap::builder::PossibleValuesParser;
use schemars::{Schema, schema_for, transform};
use tramplab_kernel::{axis, manifest_schema, series};
use tramplab_lab::{
    error::{Context, Result},
    place,
};
use tramplab_model::{cpu::Cpu, run::Run};
use tramplab_report::{compared, mechanisms};
use tramplab_suite::Suite;

type Make = fn() -> Schema;

/// Each is `docs/NAME.schema.json`.
const ALL: [(&str, Make); 12] = [
    ("axes", axis::schema),
    ("bisection", || schema_for!(bisect::Document)),
    ("cache", || schema_for!(cache::Document)),
    ("comparison", || schema_for!(compared::Document)),
    ("cpu", || schema_for!(Cpu)),
    ("defaults", || schema_for!(Defaults)),
    ("events", || schema_for!(Message)),
    ("kernel", manifest_schema),
    ("mechanisms", mechanisms::data::schema),
    ("run", || schema_for!(Run)),
    ("series", series::schema),
    ("suite", || schema_for!(Suite)),
];

#[derive(clap::Args)]
pub struct Args {
    /// Print this one [default: write all to docs/NAME.schema.json]
    #[arg(value_parser = PossibleValuesParser::new(ALL.map(|(name, _)| name)))]
    name: Option<String>,
}

pub fn schema(args: &Args) -> Result<u8> {
    for (name, make) in ALL {
        match &args.name {
            Some(wanted) if wanted == name => output::print(text(make()).as_bytes())?,
            Some(_) => {}
            None => {
                let path = place().checkout("schema")?.join(format!("docs/{name}.schema.json"));
                std::fs::write(&path, text(make()))
                    .with_context(|| format!("failed to write {}", path.display()))?;
                link::tell("written:", &path);
            }
        }
    }
    Ok(exit::PASS)
}

fn text(mut schema: Schema) -> String {
    plain(&mut schema);
    format!("{:#}\n", schema.to_value())
}

/// Descriptions are comments of the code: removes line breaks and links to other comments.
fn plain(schema: &mut Schema) {
    if let Some(serde_json::Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ").replace("[`", "`").replace("`]", "`");
    }
    transform::transform_subschemas(&mut plain, schema);
}
