// Another model's numbers, WORDS words of 32 bits on a stream, into the shadow bank; with the last one, the switch:
//   start, load, write (until the last word has reached its memory), hold (no sample begins: all inputs stand between two,
//   or within one that is old), tell (which sample is the first of the new bank), switch (until all units have it), settle
//   (until nothing reads the old bank any more).
// A stream that is too short or too long changes nothing.
module update_loader #(
    parameter int INPUTS = 1,
    parameter int WORDS = 1,
    parameter int CHAIN = 8,           // cycles in which a word reaches the last memory
    parameter int SETTLE = 64          // from the switch of the last unit to its last read of the old bank
) (
    input  logic              clk,
    input  logic              rst,
    input  logic [31:0]       w_axis_tdata,
    input  logic              w_axis_tvalid,
    output logic              w_axis_tready,
    input  logic              w_axis_tlast,
    input  logic [INPUTS-1:0] begins,    // a sample's first word is taken
    output logic              hold,
    output logic [33:0]       update,
    output logic [16:0]       change,
    input  logic              switched,  // all units read the bank of `change`
    output logic [127:0]      facts      // words of an update; status; first sample of the bank in use; updates so far
);
    typedef enum logic [2:0] {START, LOAD, SKIP, WRITE, HOLD, TELL, SWITCH, SETTLED} step_t;
    localparam int LONGEST = (CHAIN > SETTLE) ? CHAIN : SETTLE;
    localparam int TW = $clog2(LONGEST + 8);
    localparam int SPREAD = 4;         // registers from here to the units, and back
    localparam int CW = $clog2(WORDS + 1);

    step_t step;
    logic [TW-1:0] left;
    logic [CW-1:0] count;
    logic [31:0] first, updates;
    logic [INPUTS-1:0][31:0] begun;
    logic [31:0] most;
    logic bank, refused, take;

    // Not reset: memories are not either.
    initial bank = 1'b0;

    assign take = w_axis_tvalid && w_axis_tready;
    assign w_axis_tready = step == LOAD || step == SKIP;
    assign hold = step == HOLD || step == TELL;
    assign change = {bank, first[15:0]};
    assign facts = {updates, first, {29'd0, refused, step == SWITCH || step == SETTLED, step != START}, 32'(WORDS)};

    // The input that is ahead: a sample with a number from there on has not begun anywhere.
    always_comb begin
        most = begun[0];
        for (int i = 1; i < INPUTS; i++) if ($signed(begun[i] - most) > 0) most = begun[i];
    end

    always_ff @(posedge clk) begin
        for (int i = 0; i < INPUTS; i++) begun[i] <= rst ? '0 : begun[i] + 32'(begins[i]);
        update <= {!rst && ((step == START && w_axis_tvalid) || (take && step == LOAD)), step == START, w_axis_tdata};
        if (rst) begin
            step <= START;
            left <= '0;
            count <= '0;
            first <= '0;
            updates <= '0;
            refused <= 1'b0;
        end else begin
            left <= left - 1'b1;
            case (step)
                START: begin
                    count <= '0;
                    if (w_axis_tvalid) step <= LOAD;
                end
                LOAD: if (take) begin
                    count <= count + 1'b1;
                    left <= TW'(CHAIN);
                    if (w_axis_tlast) begin
                        refused <= count != CW'(WORDS - 1);
                        step <= (count == CW'(WORDS - 1)) ? WRITE : START;
                    end else if (count == CW'(WORDS - 1)) begin
                        step <= SKIP;
                    end
                end
                SKIP: if (take && w_axis_tlast) begin
                    refused <= 1'b1;
                    step <= START;
                end
                WRITE: if (left == '0) begin
                    left <= TW'(SPREAD);
                    step <= HOLD;
                end
                HOLD: if (left == '0) begin
                    first <= most;
                    bank <= !bank;
                    left <= TW'(SPREAD);
                    step <= TELL;
                end
                TELL: if (left == '0) step <= SWITCH;
                SWITCH: if (switched) begin
                    left <= TW'(SETTLE);
                    step <= SETTLED;
                end
                SETTLED: if (left == '0) begin
                    updates <= updates + 1'b1;
                    step <= START;
                end
            endcase
        end
    end
endmodule
