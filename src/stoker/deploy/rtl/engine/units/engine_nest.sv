// Seven loops over four addresses. At each step the innermost loop that is not in its last round goes on, those inside
// begin again, and each address moves by that loop's constant. A loop is 96 bits: rounds less 1, then the moves of a,
// b, c and p.
module engine_nest #(
    parameter int LEVELS = 7,
    parameter int ADDRESS_W = 20,
    parameter int COUNT_W = 16
) (
    input  logic                                          clk,
    input  logic                                          start,
    input  logic                                          step,
    input  logic [LEVELS*(COUNT_W+4*ADDRESS_W)-1:0]       loops,
    input  logic [4*ADDRESS_W-1:0]                        bases,
    input  logic [2:0]                                    reduce,
    input  logic [2:0]                                    tail_level,
    output logic [ADDRESS_W-1:0]                          a,
    output logic [ADDRESS_W-1:0]                          b,
    output logic [ADDRESS_W-1:0]                          c,
    output logic [ADDRESS_W-1:0]                          p,
    output logic                                          first,    // of a sum
    output logic                                          last,
    output logic                                          short_word,
    output logic                                          ends      // the nest's last step
);
    localparam int LOOP_W = COUNT_W + 4 * ADDRESS_W;

    logic [LEVELS-1:0] at_first, at_last, steps;
    logic [4*ADDRESS_W-1:0] addresses, moves;

    assign {p, c, b, a} = addresses;
    assign ends = &at_last;
    always_comb begin
        first = 1'b1;
        last = 1'b1;
        short_word = 1'b0;
        moves = '0;
        for (int i = 0; i < LEVELS; i++) begin
            if (3'(i) < reduce && !at_first[i]) first = 1'b0;
            if (3'(i) < reduce && !at_last[i]) last = 1'b0;
            if (3'(i) == tail_level) short_word = at_last[i];
            // One of them at most.
            moves |= {4*ADDRESS_W{steps[i]}} & loops[i*LOOP_W+COUNT_W +: 4*ADDRESS_W];
        end
    end

    // Rounds are counted down, and that none is left is kept beside them: addresses wait for no comparison.
    generate
        for (genvar i = 0; i < LEVELS; i++) begin : level
            logic [COUNT_W-1:0] left, rounds;
            logic begins;
            assign rounds = loops[i*LOOP_W +: COUNT_W];
            assign begins = start || (step && !ends && (&at_last[i:0]));
            if (i == 0) begin : inner
                assign steps[i] = !at_last[i];
            end else begin : outer
                assign steps[i] = !at_last[i] && (&at_last[i-1:0]);
            end
            always_ff @(posedge clk) begin
                if (begins) begin
                    left <= rounds;
                    at_first[i] <= 1'b1;
                    at_last[i] <= rounds == '0;
                end else if (step && steps[i]) begin
                    left <= left - 1'b1;
                    at_first[i] <= 1'b0;
                    at_last[i] <= left == COUNT_W'(1);
                end
            end
        end
        for (genvar i = 0; i < 4; i++) begin : address
            always_ff @(posedge clk) begin
                if (start) addresses[i*ADDRESS_W +: ADDRESS_W] <= bases[i*ADDRESS_W +: ADDRESS_W];
                else if (step) begin
                    addresses[i*ADDRESS_W +: ADDRESS_W] <=
                        addresses[i*ADDRESS_W +: ADDRESS_W] + moves[i*ADDRESS_W +: ADDRESS_W];
                end
            end
        end
    endgenerate
endmodule
