// The requantiser's law for LANES channels a cycle, by comparisons alone: a result goes up where the sum reaches a
// threshold of its channel, and each step compares with the middle one of those that are left: a cycle for each bit.
// A lane has a memory for each step, with all its channels' thresholds one after another.
module thresholds #(
    parameter int LANES = 1,
    parameter int ACC_W = 24,
    parameter int OUT_W = 4,
    parameter int SUM_W = 24,        // of all finished sums, and of one beyond them
    parameter int W = 24,            // of a threshold
    parameter int SIGNED = 1,        // 0: no threshold is below 0
    parameter int LOW = -8,
    parameter int HIGH = 7,
    parameter int WORDS = 1,         // channels of a lane that have thresholds of their own
    parameter FILE = ""              // names of the memories without `_STEP_LANE.hex`
) (
    input  logic                   clk,
    input  logic                   rst,
    input  logic [LANES*ACC_W-1:0] in_data,
    input  logic                   in_valid,
    output logic [LANES*OUT_W-1:0] out_data,
    output logic                   out_valid
);
    localparam int STEPS = $clog2(HIGH - LOW + 1);
    localparam int AW = (WORDS > 1) ? $clog2(WORDS) : 1;

    // Before each step, and behind the last: whether there is a sum, and the number of its channel.
    logic [STEPS:0] valid;
    logic [STEPS*AW-1:0] at;
    logic [AW-1:0] next;
    assign valid[0] = in_valid;
    always_ff @(posedge clk) valid[STEPS:1] <= rst ? '0 : valid[STEPS-1:0];
    assign out_valid = valid[STEPS];

    generate
        if (WORDS > 1) begin : by_channel
            assign next = rst ? '0 : !in_valid ? at[AW-1:0] : (at[AW-1:0] == AW'(WORDS - 1)) ? '0 : at[AW-1:0] + 1'b1;
            always_ff @(posedge clk) at[AW-1:0] <= next;
            if (STEPS > 1) begin : later
                always_ff @(posedge clk) at[STEPS*AW-1:AW] <= at[(STEPS-1)*AW-1:0];
            end
        end else begin : one
            assign next = '0;
            assign at = '0;
        end
        logic unused;
        assign unused = &{1'b0, at, next};

        for (genvar i = 0; i < LANES; i++) begin : lane
            logic signed [STEPS*SUM_W-1:0] sums;    // before each step
            logic [(STEPS+1)*STEPS-1:0] found;      // bits of the result before each step, and behind the last
            logic [ACC_W-1:0] given;
            assign given = in_data[i*ACC_W +: ACC_W];
            if (SUM_W > ACC_W) begin : extended
                assign sums[SUM_W-1:0] = {{(SUM_W-ACC_W){given[ACC_W-1]}}, given};
            end else begin : kept
                assign sums[SUM_W-1:0] = given[SUM_W-1:0];
                logic unused_signs;                 // copies of the sign
                assign unused_signs = &{1'b0, given};
            end
            assign found[STEPS-1:0] = '0;
            if (STEPS > 1) begin : later
                always_ff @(posedge clk) sums[STEPS*SUM_W-1:SUM_W] <= sums[(STEPS-1)*SUM_W-1:0];
            end

            for (genvar s = 0; s < STEPS; s++) begin : step
                logic signed [SUM_W-1:0] sum, least;
                logic [W-1:0] threshold;
                logic reached;
                logic [STEPS-1:0] bits;
                assign sum = sums[s*SUM_W +: SUM_W];
                if (SIGNED != 0) begin : with_sign
                    assign least = SUM_W'($signed(threshold));
                end else begin : without
                    assign least = SUM_W'({1'b0, threshold});
                end
                assign reached = sum >= least;
                assign bits = STEPS'({found[s*STEPS +: STEPS], reached});
                always_ff @(posedge clk) found[(s+1)*STEPS +: STEPS] <= bits;

                // The threshold for the next cycle's sum is read in this one: it follows from the bits that are known.
                logic [W-1:0] words [WORDS << s];
                initial begin
                    $readmemh(
                        {
                            FILE, "_", 8'(48 + s), "_",
                            8'(48 + i / 1000), 8'(48 + i / 100 % 10), 8'(48 + i / 10 % 10), 8'(48 + i % 10), ".hex"
                        },
                        words
                    );
                end
                if (s > 0) begin : by_bits
                    if (WORDS > 1) begin : by_channel
                        always_ff @(posedge clk) threshold <= words[{at[(s-1)*AW +: AW], step[s-1].bits[s-1:0]}];
                    end else begin : one
                        always_ff @(posedge clk) threshold <= words[step[s-1].bits[s-1:0]];
                    end
                end else if (WORDS > 1) begin : by_channel
                    always_ff @(posedge clk) threshold <= words[next];
                end else begin : constant
                    assign threshold = words[0];
                end
            end
            assign out_data[i*OUT_W +: OUT_W] = OUT_W'(LOW) + OUT_W'(found[STEPS*STEPS +: STEPS]);
        end
    endgenerate
endmodule
