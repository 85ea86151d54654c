//! Draws one chart as SVG.

use std::ops::Range;

use anyhow::{Result, anyhow};
use plotters::{
    chart::ChartContext,
    coord::{
        Shift,
        ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter},
    },
    element::DashedPathElement,
    prelude::*,
    style::{FontDesc, FontFamily, FontStyle},
};

use super::series::{Look, Marker, Series};

/// Width and height in pixels; the legend takes the right part.
const SIZE: (u32, u32) = (1000, 640);
const LEGEND_WIDTH: u32 = 210;
const TITLE_HEIGHT: u32 = 56;
/// Characters of the line below the title.
const MAX_SUBTITLE: usize = 145;
/// Height of a line of the legend.
const LINE_HEIGHT: i32 = 16;
const INK: RGBColor = RGBColor(40, 40, 40);
const FAINT: RGBColor = RGBColor(225, 225, 225);

/// An axis with its labels.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    title: &'static str,
    range: Range<f64>,
    labels: Vec<f64>,
    logarithmic: bool,
}

impl Axis {
    /// An axis with labels at these values, in equal steps.
    pub(super) fn linear(title: &'static str, range: Range<f64>, labels: Vec<f64>) -> Self {
        Axis { title, range, labels, logarithmic: false }
    }

    /// The same in equal ratios; values are positive.
    pub(super) fn logarithmic(title: &'static str, range: Range<f64>, labels: Vec<f64>) -> Self {
        Axis { title, range, labels, logarithmic: true }
    }

    fn height(&self, v: f64) -> f64 {
        if self.logarithmic { v.ln() } else { v }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, v: &f64, limit: (i32, i32)) -> i32 {
        let [v, start, end] = [*v, self.range.start, self.range.end].map(|v| self.height(v));
        limit.0 + ((v - start) / (end - start) * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.labels.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    /// `20`, `0.1`, `2.5`: no digits that say nothing.
    fn format(v: &f64) -> String {
        let text = format!("{v:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

/// A horizontal line.
pub(super) struct Reference {
    pub(super) value: f64,
    pub(super) label: &'static str,
}

/// Everything that is drawn.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    /// Source and command.
    pub(super) subtitle: &'a str,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
    pub(super) reference: Option<Reference>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Chart<'_> {
    /// The picture.
    pub(super) fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            // The backend writes to memory, so that no error of its can be anybody's fault but this module's.
            let failed = |error: &dyn std::fmt::Display| anyhow!("drawing: {error}");
            root.fill(&WHITE).map_err(|e| failed(&e))?;
            self.draw(&root).map_err(|e| failed(&e))?;
            root.present().map_err(|e| failed(&e))?;
        }
        if !svg.ends_with('\n') {
            svg.push('\n');
        }
        Ok(svg)
    }

    fn draw(&self, root: &Area<'_>) -> Result<(), Box<dyn std::error::Error>> {
        let (head, body) = root.split_vertically(TITLE_HEIGHT);
        head.draw(&Text::new(self.title.to_owned(), (14, 8), font(22, FontStyle::Bold)))?;
        head.draw(&Text::new(shortened(self.subtitle), (14, 34), font(14, FontStyle::Normal)))?;
        let (plot, legend) = body.split_horizontally(SIZE.0 - LEGEND_WIDTH);
        let mut builder = ChartBuilder::on(&plot);
        builder.margin(10).x_label_area_size(46).y_label_area_size(62);
        self.draw_lines(&mut builder.build_cartesian_2d(self.x.clone(), self.y.clone())?)?;
        self.draw_legend(&legend)
    }

    fn draw_lines(
        &self,
        chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<Axis, Axis>>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        chart
            .configure_mesh()
            .x_desc(self.x.title)
            .y_desc(self.y.title)
            .x_labels(self.x.labels.len())
            .y_labels(self.y.labels.len())
            .bold_line_style(FAINT)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .label_style(font(15, FontStyle::Normal))
            .axis_desc_style(font(16, FontStyle::Normal))
            .draw()?;
        if let Some(reference) = &self.reference {
            let ends = [self.x.range.start, self.x.range.end].map(|x| (x, reference.value));
            chart.draw_series(DashedLineSeries::new(ends, 8, 6, INK.stroke_width(1)))?;
            let style = font(14, FontStyle::Normal);
            let at = (self.x.range.start, reference.value);
            chart.draw_series([EmptyElement::at(at) + Text::new(reference.label, (8, -16), style)])?;
        }
        for series in &self.series {
            for run in self.visible(&series.points) {
                let style = series.look.color.stroke_width(2);
                if series.look.dashed {
                    chart.draw_series(DashedLineSeries::new(run, 6, 4, style))?;
                } else {
                    chart.draw_series(LineSeries::new(run, style))?;
                }
            }
            let markers = series.points.iter().filter(|point| self.is_visible(point));
            for &point in markers {
                chart.draw_series([EmptyElement::at(point) + marker(series.look, (0, 0))])?;
            }
        }
        Ok(())
    }

    fn is_visible(&self, point: &(f64, f64)) -> bool {
        let within = |range: &Range<f64>, v: f64| range.start <= v && v <= range.end;
        within(&self.x.range, point.0) && within(&self.y.range, point.1)
    }

    /// The runs of a line that lie within the chart, cut at its top edge.
    fn visible(&self, points: &[(f64, f64)]) -> Vec<Vec<(f64, f64)>> {
        let height = |y: f64| self.y.height(y);
        let top = self.y.range.end;
        let mut runs: Vec<Vec<(f64, f64)>> = vec![Vec::new()];
        let mut before: Option<(f64, f64)> = None;
        for &point in points {
            let cut = before.filter(|b| (b.1 > top) != (point.1 > top)).map(|b| {
                let t = (height(top) - height(b.1)) / (height(point.1) - height(b.1));
                (b.0 + t * (point.0 - b.0), top)
            });
            let Some(run) = runs.last_mut() else { break };
            run.extend(cut.filter(|cut| self.is_visible(cut)));
            if self.is_visible(&point) {
                run.push(point);
            } else if !run.is_empty() {
                runs.push(Vec::new());
            }
            before = Some(point);
        }
        runs.retain(|run| run.len() > 1);
        runs
    }

    fn draw_legend(&self, area: &Area<'_>) -> Result<(), Box<dyn std::error::Error>> {
        let is_seen = |series: &&Series| series.points.iter().any(|point| self.is_visible(point));
        let (seen, unseen): (Vec<&Series>, Vec<&Series>) = self.series.iter().partition(is_seen);
        let mut y = 10;
        for series in seen {
            let style = series.look.color.stroke_width(2);
            let ends = [(4, y), (34, y)];
            if series.look.dashed {
                area.draw(&DashedPathElement::new(ends, 6, 4, style))?;
            } else {
                area.draw(&PathElement::new(ends, style))?;
            }
            area.draw(&(EmptyElement::at((19, y)) + marker(series.look, (0, 0))))?;
            area.draw(&Text::new(series.name.clone(), (42, y - 7), font(15, FontStyle::Normal)))?;
            y += LINE_HEIGHT;
        }
        if !unseen.is_empty() {
            area.draw(&Text::new("off the scale:", (4, y), font(14, FontStyle::Normal)))?;
        }
        for pair in unseen.chunks(2) {
            y += LINE_HEIGHT;
            let names: Vec<&str> = pair.iter().map(|series| series.name.as_str()).collect();
            area.draw(&Text::new(names.join(", "), (14, y), font(14, FontStyle::Normal)))?;
        }
        Ok(())
    }
}

/// What fits in one line; the file that a plot is made from has the whole.
fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_SUBTITLE).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

fn font(size: u32, style: FontStyle) -> TextStyle<'static> {
    TextStyle::from(FontDesc::new(FontFamily::SansSerif, f64::from(size), style)).color(&INK)
}

type Pixel = (i32, i32);

/// The marker of a series around `at`.
fn marker<'a>(look: Look, at: Pixel) -> DynElement<'static, SVGBackend<'a>, Pixel> {
    let (x, y) = at;
    let fill = look.color.filled();
    let line = look.color.stroke_width(2);
    match look.marker {
        Marker::Dot => Circle::new(at, 4, fill).into_dyn(),
        Marker::Ring => Circle::new(at, 4, line).into_dyn(),
        Marker::Square => Rectangle::new([(x - 4, y - 4), (x + 4, y + 4)], fill).into_dyn(),
        Marker::Triangle => TriangleMarker::new(at, 5, fill).into_dyn(),
        Marker::Cross => Cross::new(at, 4, line).into_dyn(),
    }
}
