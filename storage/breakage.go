package storage

// breakage breaks rules of the journal, one at a time, so that a test can show
// that its crashes find each. The zero value breaks none.
type breakage struct {
	answerBeforeSync  bool // a round is answered when it is written
	retrySync         bool // a failed sync is tried once more, and believed
	tableNotSynced    bool // files are freed when the table is written
	logsNotSynced     bool // the table is written when the logs are
	failedLogsTrusted bool // the table names what was written to a log that failed
	dirNotSynced      bool // a new file is used before its name is durable
	noCarry           bool // a generation does not begin with the states
	reuseBehindNewer  bool // files are freed behind the newer copy of the table
	prevIsReadEnd     bool // the predecessor's end is what was read of it
	noRotation        bool // open goes on behind the last valid round
	noRewrite         bool // open believes the table that it read
	syncWithoutWrite  bool // open syncs the table that it read, as it is
	durableFirst      bool // open overwrites first the copy that it has synced
	reuseAboveProven  bool // open takes the file of the newest generation
	neverProveNewest  bool // generations of killed opens are kept however many
	anyGeneration     bool // a round is valid whatever life of the file it is of
	sameGeneration    bool // generation numbers and salts come again
	noSearch          bool // nothing is looked for behind the first bad round
	closedMayEndShort bool // a closed generation may end before its proven end
}
