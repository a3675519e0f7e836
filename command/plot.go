package command

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/lukv/lukv/eval/study"
	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/report"
)

type plotCmd struct {
	Files []string `arg:"" name:"file" help:"JSON files written by lukv analyze."`

	HTML string `name:"html" placeholder:"FILE" help:"Write all figures to one self-contained page; - is standard output."`
	SVG  string `name:"svg" placeholder:"DIR" help:"Write each figure to DIR/NAME.svg."`
	CSV  string `name:"csv" placeholder:"DIR" help:"Write the points of each figure to DIR/NAME.csv, in long form."`
}

func (plotCmd) Help() string {
	return `Draw each figure in every requested format. Browsers, rsvg-convert and Inkscape turn SVG into PNG or PDF.

Examples:

  lukv plot losses.json cost.json --html figures.html --svg figures`
}

func (c *plotCmd) Run(e *env) error {
	if c.HTML == "" && c.SVG == "" && c.CSV == "" {
		return usage("nothing to draw: found no output, expected --html FILE, --svg DIR or --csv DIR")
	}
	if c.SVG == "-" || c.CSV == "-" {
		return usage("--svg and --csv name folders; only --html can write to standard output")
	}
	page := report.Page{Title: "Figures", Intro: "Every figure is drawn from its data by lukv plot; each section begins with the command that measured it."}
	used := map[string]bool{}
	for _, path := range c.Files {
		data, err := e.readText(path)
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
