//! Values that are already in the form in which PostgreSQL takes them.

use std::error::Error;

use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

/// EWKB, as bytes. The SRID is inside.
#[derive(Debug)]
pub(super) struct Ewkb<'a>(pub &'a [u8]);

impl ToSql for Ewkb<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(self.0);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::BYTEA
    }

    to_sql_checked!();
}

/// JSON text for a `jsonb`, which is sent with its format's version in front.
#[derive(Debug)]
pub(super) struct Json<'a>(pub &'a str);

impl ToSql for Json<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&[1]);
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSONB
    }

    to_sql_checked!();
}

/// Microseconds since 1970 for a `timestamptz`, which counts from 2000.
#[derive(Debug)]
pub(super) struct Micros(pub i64);

const FROM_1970_TO_2000_US: i64 = 946_684_800_000_000;

impl ToSql for Micros {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&(self.0 - FROM_1970_TO_2000_US).to_be_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }

    to_sql_checked!();
}
