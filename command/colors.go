package command

import (
	"os"

	"github.com/lukv/lukv/internal/report"
)

// colors returns the colours that standard output can show: none if it is not a
// terminal, TERM is dumb or NO_COLOR is set.
func (e *env) colors() report.Colors {
	switch {
	case os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" || !isTerminal(e.out):
		return report.NoColors
	case os.Getenv("COLORTERM") == "truecolor" || os.Getenv("COLORTERM") == "24bit":
		return report.Colors24
	}
	return report.Colors256
}
