//! Geometries as EWKB, the form in which PostGIS takes them over the wire.
//! See <https://libgeos.org/specifications/wkb/#extended-wkb>.

use postgis::ewkb::{
    AsEwkbGeometry, AsEwkbPoint, EwkbRead, EwkbWrite, GeometryCollectionT, GeometryT, LineStringT, MultiLineStringT,
    MultiPointT, MultiPolygonT, Point, PointZ, PolygonT,
};

use super::Fault;
use super::geometry::{Geometry, Kind, Position};
use crate::event::{Reason, Shape};

/// Stands on the outermost geometry only: PostGIS hands it down to the parts.
const SRID: Option<i32> = Some(4326);

/// Two-dimensional, and with heights too where there are any.
pub(super) fn encode(geometry: &Geometry) -> Result<Shape, Fault> {
    let with_heights = if geometry.has_heights { Some(ewkb::<PointZ>(geometry)?) } else { None };
    Ok(Shape { footprint: ewkb::<Point>(geometry)?, with_heights })
}

/// The two point types of the column pair.
trait Ordinates: postgis::Point + EwkbRead + for<'a> AsEwkbPoint<'a> {
    fn of(position: &Position, srid: Option<i32>) -> Self;
}

impl Ordinates for Point {
    fn of(position: &Position, srid: Option<i32>) -> Self {
        Self { x: position.x, y: position.y, srid }
    }
}

impl Ordinates for PointZ {
    fn of(position: &Position, srid: Option<i32>) -> Self {
        Self { x: position.x, y: position.y, z: position.z, srid }
    }
}

fn ewkb<P: Ordinates>(geometry: &Geometry) -> Result<Vec<u8>, Fault> {
    // Room for the ordinates and a few headers; rings and parts make it grow.
    let mut bytes = Vec::with_capacity(geometry.vertices * size_of::<P>() + 32);
    let written = convert::<P>(&geometry.kind, SRID).as_ewkb().write_ewkb(&mut bytes);
    written.map_err(|error| Fault::new(Reason::InternalError, format!("the geometry cannot be encoded: {error}")))?;
    Ok(bytes)
}

fn convert<P: Ordinates>(kind: &Kind, srid: Option<i32>) -> GeometryT<P> {
    match kind {
        Kind::Point(point) => GeometryT::Point(P::of(point, srid)),
        Kind::MultiPoint(points) => GeometryT::MultiPoint(MultiPointT { points: positions(points), srid }),
        Kind::LineString(points) => GeometryT::LineString(LineStringT { points: positions(points), srid }),
        Kind::MultiLineString(lines) => {
            GeometryT::MultiLineString(MultiLineStringT { lines: lines.iter().map(|l| line(l)).collect(), srid })
        }
        Kind::Polygon(rings) => GeometryT::Polygon(polygon(rings, srid)),
        Kind::MultiPolygon(polygons) => GeometryT::MultiPolygon(MultiPolygonT {
            polygons: polygons.iter().map(|rings| polygon(rings, None)).collect(),
            srid,
        }),
        Kind::Collection(members) => GeometryT::GeometryCollection(GeometryCollectionT {
            geometries: members.iter().map(|member| convert(member, None)).collect(),
            srid,
        }),
    }
}

fn positions<P: Ordinates>(points: &[Position]) -> Vec<P> {
    points.iter().map(|point| P::of(point, None)).collect()
}

fn line<P: Ordinates>(points: &[Position]) -> LineStringT<P> {
    LineStringT { points: positions(points), srid: None }
}

fn polygon<P: Ordinates>(rings: &[Vec<Position>], srid: Option<i32>) -> PolygonT<P> {
    PolygonT { rings: rings.iter().map(|ring| line(ring)).collect(), srid }
}
