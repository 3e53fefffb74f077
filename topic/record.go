package topic

import "time"

// Record is what producers write and readers get back, byte for byte.
//
// A nil Key or Value is null and stays distinct from an empty one.
type Record struct {
	Key     []byte
	Value   []byte
	Headers []Header
	// Timestamp has a precision of a millisecond and no meaning to the log.
	// The zero time stands for the time at which the batch was begun.
	Timestamp time.Time
}

// Header is a name and a value that travel with a record. Names may repeat;
// order is kept.
type Header struct {
	Key   string
	Value []byte
}

const (
	// MaxRecordSize bounds Record.Size, in bytes.
	MaxRecordSize = 16 << 20
	// TargetBatchSize is the size of a batch's records, in bytes, that is not
	// passed by joining records. A record larger than this travels alone.
	TargetBatchSize = 1 << 20

	headerOverhead = 12 // more than the varints of a header: 5 + 5
	recordOverhead = 40 // more than the varints of a record: 5 + 10 + 5 + 5 + 5
)

// Size is what counts against MaxRecordSize: the bytes of the key, the value
// and the headers, and 12 bytes for each header.
func (r *Record) Size() int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value) + headerOverhead
	}
	return n
}

// Fitting returns how many records from the front of records travel in one
// batch: at least one if there is any. It fails with a *TooLargeError if the
// first record passes MaxRecordSize.
func Fitting(records []Record) (int, error) {
	size := 0
	for i := range records {
		n := records[i].Size()
		if n > MaxRecordSize {
			if i == 0 {
				return 0, &TooLargeError{Size: n, Max: MaxRecordSize}
			}
			return i, nil
		}
		size += n + recordOverhead
		if size > TargetBatchSize && i > 0 {
			return i, nil
		}
	}
	return len(records), nil
}
