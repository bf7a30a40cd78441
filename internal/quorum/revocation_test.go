package quorum

import (
	"errors"
	"testing"
)

// A holder was not asked only if no quorum can have the request: two quorums have a node in
// common.
func TestAskTally(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		n, q, yes, no, failed int
		written, unasked      bool
	}{
		{5, 3, 2, 0, 3, false, false},
		{5, 3, 3, 0, 2, true, false},
		{5, 3, 0, 2, 0, false, false},
		{5, 3, 0, 2, 3, false, false},
		{5, 3, 0, 3, 0, false, true},
		{5, 3, 1, 4, 0, false, false},
		{5, 4, 0, 1, 0, false, false},
		{5, 4, 0, 2, 0, false, true},
		{1, 1, 0, 1, 0, false, true},
		{1, 1, 1, 0, 0, true, false},
	} {
		tally := tally{size: size{test.n, test.q}, outstanding: test.n}
		for range test.yes {
			tally.countRequest(reply{says: written})
		}
		for range test.no {
			tally.countRequest(reply{})
		}
		for i := range test.failed {
			tally.countRequest(reply{node: i, err: errors.New("no answer")})
		}
		if tally.written() != test.written || tally.noneHasRequest() != test.unasked {
			t.Errorf("%+v: written %v, unasked %v", test, tally.written(), tally.noneHasRequest())
		}
	}
}
