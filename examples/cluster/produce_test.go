package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
)

func at(partition uint32, offset stele.Offset) result {
	return result{at: stele.Position{Partition: partition, Offset: offset}}
}

func failed(o stele.Outcome, text string) result { return result{err: &requestError{500, o, text}} }

// What a client reads of an answer is what the node wrote.
func TestResults(t *testing.T) {
	results := []result{
		at(0, 5), at(0, 6), at(1, 7), at(1, 9), at(0, 10),
		failed(stele.OutcomeUnknown, "two\nlines"), failed(stele.OutcomeRetry, "x"), failed(stele.OutcomeRetry, "x"),
		failed(stele.OutcomeRefused, "x"), at(3, 0),
	}
	text := string(encodeResults(results))
	require.Equal(t, "ok 2 0 5\nok 1 1 7\nok 1 1 9\nok 1 0 10\nunknown 1 two; lines\nretry 2 x\nrefused 1 x\nok 1 3 0\nend 10\n", text)
	read, err := decodeResults(strings.NewReader(text), len(results))
	require.NoError(t, err)
	for i, r := range results {
		require.Equal(t, r.at, read[i].at)
		if r.err != nil {
			require.Equal(t, outcomeOf(r.err), remoteOutcome(read[i].err))
		}
	}
}

// An answer that is cut off, or is about other records, acknowledges nothing.
func TestResultsCutOff(t *testing.T) {
	text := "ok 2 0 5\nretry 1 x\nend 3\n"
	for i := range len(text) - 1 { // without its last line feed it is whole
		_, err := decodeResults(strings.NewReader(text[:i]), 3)
		require.Error(t, err, "%q", text[:i])
		require.Equal(t, stele.OutcomeUnknown, remoteOutcome(err))
	}
	for _, bad := range []string{
		"ok 2 0 5\nend 2\n", "ok 4 0 5\nend 4\n", "ok 3 0 x\nend 3\n", "ok 3 0\nend 3\n", "ok -3 0 5\nend 3\n",
		"ok 99999999999999999999 0 5\nend 3\n", "ok 2 0 1\nok 2 0 3\nend 3\n", "<html>\n", "",
	} {
		_, err := decodeResults(strings.NewReader(bad), 3)
		require.Error(t, err, "%q", bad)
		require.Equal(t, stele.OutcomeUnknown, remoteOutcome(err))
	}
	_, err := decodeResults(io.MultiReader(strings.NewReader("ok 3 0 5\n"), errReader{}), 3)
	require.ErrorContains(t, err, "reset")
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("reset") }

func TestLinesOf(t *testing.T) {
	for _, c := range []struct {
		body, separator string
		want            string
	}{
		{"", "", ""},
		{"\n", "", "<nil>="},
		{"a\n\nb\r\n\x00\xff", "", "<nil>=a <nil>= <nil>=b\r <nil>=\x00\xff"},
		{"k:v:w\n:v\nk:\nnone\n", ":", "k=v:w =v k= <nil>=none"},
	} {
		var got []string
		for _, r := range linesOf([]byte(c.body), c.separator) {
			key := string(r.Key)
			if r.Key == nil {
				key = "<nil>"
			}
			require.NotNil(t, r.Value, "an empty line is empty, not null")
			got = append(got, fmt.Sprintf("%s=%s", key, r.Value))
		}
		require.Equal(t, c.want, strings.Join(got, " "))
	}
}

// A line that no record can hold is refused by its number, and not read to its
// end.
func TestReadBatchTooLong(t *testing.T) {
	endless := &counter{r: io.MultiReader(strings.NewReader("a\n\n"), xs{})}
	p := producing{partition: -1}
	r := bufio.NewReader(endless)
	batch, err := p.readBatch(r)
	require.NoError(t, err)
	require.Len(t, batch, 2)
	_, err = p.readBatch(r)
	require.ErrorContains(t, err, "line 3: it is too long: a record holds at most 16777216 bytes")
	require.Less(t, endless.n, int64(maxBody+1<<20))

	exactly := strings.Repeat("x", maxRecord)
	batch, err = p.readBatch(bufio.NewReader(strings.NewReader(exactly)))
	require.NoError(t, err)
	require.Len(t, batch[0].text, maxRecord)
	_, err = p.readBatch(bufio.NewReader(strings.NewReader(exactly + "x\n")))
	require.ErrorContains(t, err, "too long")
	p.separator = "::"
	_, err = p.readBatch(bufio.NewReader(strings.NewReader("k::" + exactly[1:] + "\n")))
	require.NoError(t, err, "the separator is no part of the record")
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// xs never ends.
type xs struct{}

func (xs) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
