package weights

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tensor"
)

func TestInterleavedRows(t *testing.T) {
	require.Equal(t, RowOrder{0, 2, 4, 1, 3, 5}, interleaved(6), "halves that rotate together, stored as pairs")
}

// TestRowsCopied: parts that begin and end anywhere are those of the tensor in order.
func TestRowsCopied(t *testing.T) {
	const heads, d = 3, 16
	rows := interleaved(d)
	for _, cols := range []int{1, 47} {
		x := tensor.Make(tensor.F16, heads*d, cols)
		for i := range x.Data {
			x.Data[i] = byte(i*i + i>>8)
		}
		size := 2 * cols
		var want []byte
		for row := range heads * d {
			from := row/d*d + int(rows[row%d])
			want = append(want, x.Data[from*size:(from+1)*size]...)
		}
		require.Equal(t, want, rows.apply(x).Data)
		for _, n := range []int{1, 2, 3, 64, 97, len(want)} {
			for at := 0; at+n <= len(want); at += 61 {
				part := make([]byte, n)
				rows.copy(part, x, at)
				require.Equal(t, want[at:at+n], part)
			}
		}
	}
}
