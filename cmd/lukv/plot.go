package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/lukv/lukv/eval/study"
	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/raster"
	"github.com/lukv/lukv/internal/report"
)

type plotCmd struct {
	Files []string `arg:"" name:"file" help:"JSON files written by lukv analyze."`

	HTML string `name:"html" placeholder:"FILE" help:"All figures on one page that needs nothing else; - is standard output."`
	SVG  string `name:"svg" placeholder:"DIR" help:"Every figure as DIR/NAME.svg."`
	PNG  string `name:"png" placeholder:"DIR" help:"Every figure as DIR/NAME.png, two dots for each of the SVG's."`
	CSV  string `name:"csv" placeholder:"DIR" help:"Every figure's points as DIR/NAME.csv, in long form."`
}

func (plotCmd) Help() string {
	return `Draws each figure in every format asked for.

Examples:

  lukv plot losses.json cost.json --html figures.html --svg figures`
}

func (c *plotCmd) Run(e *env) error {
	if c.HTML == "" && c.SVG == "" && c.PNG == "" && c.CSV == "" {
		return usage("nothing to draw: give --html FILE, --svg DIR, --png DIR or --csv DIR")
	}
	page := report.Page{Title: "Figures", Intro: "Every figure is drawn from its data by lukv plot; the command that measured them stands above them."}
	used := map[string]bool{}
	for _, path := range c.Files {
		data, err := e.readFile(path)
		if err != nil {
			return fmt.Errorf("read analysis: %w", err)
		}
		f, err := study.Read(bytes.NewReader(data), path)
		if err != nil {
			return err
		}
		title := f.Title
		if f.Data != "" {
			title += ": " + f.Data
		}
		page.Sections = append(page.Sections, report.Section{Title: title, Command: f.Command, Figures: f.Figures})
		for i := range f.Figures {
			figure := &f.Figures[i]
			if used[figure.ID] { // in another file
				figure.ID = fmt.Sprintf("%s-%d", figure.ID, len(used))
			}
			used[figure.ID] = true
			if err := c.write(c.SVG, figure.ID+".svg", func(w io.Writer) error { return figure.WriteSVG(w, f.Command) }); err != nil {
				return err
			}
			if err := c.write(c.PNG, figure.ID+".png", func(w io.Writer) error { return writePNG(w, figure) }); err != nil {
				return err
			}
			if err := c.write(c.CSV, figure.ID+".csv", figure.WriteCSV); err != nil {
				return err
			}
		}
	}
	if c.HTML == "" {
		return nil
	}
	return e.writeTo(c.HTML, page.WriteHTML)
}

// writePNG draws a figure as its SVG shows it.
func writePNG(w io.Writer, f *report.Figure) error {
	var svg bytes.Buffer
	if err := f.WriteSVG(&svg, ""); err != nil {
		return err
	}
	return raster.WritePNG(w, svg.Bytes())
}

// write writes a file into a folder, if one is given.
func (c *plotCmd) write(dir, name string, write func(io.Writer) error) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, name), 0o666, write)
}
