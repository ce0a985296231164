// clamp(((acc * M + 2^(SHIFT-1)) >> SHIFT) + ZERO, LOW, HIGH) for LANES channels a cycle; five registers deep.
// M is unsigned, of 16 bits, by channel in the order of the stream; without multipliers it is 1.
module requantise #(
    parameter int LANES = 1,
    parameter int ACC_W = 24,
    parameter int OUT_W = 8,
`ifdef UPDATABLE
    parameter LAW = "",
`else
    parameter int SHIFT = 8,
    parameter int ZERO = 0,
    parameter int LOW = -128,
    parameter int HIGH = 127,
`endif
    parameter int MULTIPLIERS = 0,   // words of the memory; 0: M is 1
    parameter FILE = ""
) (
    input  logic                   clk,
    input  logic                   rst,
`ifdef UPDATABLE
    input  logic [33:0]            update,
    output logic [33:0]            update_on,
    input  logic                   shadow,
    input  logic                   next_bank,   // of the word that comes in the next cycle
`endif
    input  logic [LANES*ACC_W-1:0] in_data,
    input  logic                   in_valid,
    output logic [LANES*OUT_W-1:0] out_data,
    output logic                   out_valid
);
    localparam int M_W = 16;
    localparam int SPLIT = 17;       // of an accumulator, so that both parts fit multipliers of 18 x 18
    localparam int PROD_W = (MULTIPLIERS > 0) ? ACC_W + M_W + 1 : ACC_W;
`ifdef UPDATABLE
    // The law's numbers: how far to shift, what is added, the results beyond the ends, the ends without what is added.
    localparam int SHIFT_W = 6;
    localparam int END_W = OUT_W + 2;
    localparam int LAW_W = SHIFT_W + 3 * OUT_W + 2 * END_W;
    localparam int WIDE = (PROD_W + 1 > END_W) ? PROD_W + 1 : END_W;

    logic [6:0] valid;
    logic [6:0] banks;               // of the word that comes in, and behind each step
    logic [33:0] update_law;
    logic [2*LAW_W-1:0] laws;
    logic [SHIFT_W-1:0] coarse_shift, fine_shift;
    logic [OUT_W-1:0] zero, lowest, highest;
    logic signed [END_W-1:0] bottom, top;
    always_ff @(posedge clk) begin
        valid <= rst ? '0 : {valid[5:0], in_valid};
        banks <= {banks[5:0], next_bank};
    end
    assign out_valid = valid[6];

    bank_word #(.W(LAW_W), .FILE(LAW)) numbers (.clk, .rst, .update(update_law), .update_on, .shadow, .words(laws));
    assign coarse_shift = laws[(banks[3] ? LAW_W : 0) +: SHIFT_W];
    assign fine_shift = laws[(banks[4] ? LAW_W : 0) +: SHIFT_W];
    assign {top, bottom, highest, lowest, zero} =
        banks[6] ? laws[2*LAW_W-1:LAW_W+SHIFT_W] : laws[LAW_W-1:SHIFT_W];
    logic unused_shifts;
    assign unused_shifts = &{1'b0, coarse_shift, fine_shift};
`else
    localparam int KEPT_W = ((PROD_W > SHIFT) ? PROD_W - SHIFT : 1) + 1;  // after the shift, and the carry of a half
    localparam int WIDE = ((KEPT_W > OUT_W + 2) ? KEPT_W : OUT_W + 2);

    logic [4:0] valid;
    always_ff @(posedge clk) valid <= rst ? '0 : {valid[3:0], in_valid};
    assign out_valid = valid[4];
`endif

    logic [LANES*M_W-1:0] multipliers;
    generate
`ifdef UPDATABLE
        if (MULTIPLIERS > 0) begin : by_channel
            localparam int AW = (MULTIPLIERS > 1) ? $clog2(MULTIPLIERS) : 1;
            logic [AW-1:0] at, next, write_at;
            logic write;
            logic [LANES*M_W-1:0] written;
            assign next = !in_valid ? at : (at == AW'(MULTIPLIERS - 1)) ? '0 : at + 1'b1;
            always_ff @(posedge clk) at <= rst ? '0 : next;
            chain_tap #(.W(LANES*M_W), .DEPTH(MULTIPLIERS)) new_factors (
                .clk, .rst, .update, .update_on(update_law), .write, .write_at, .written
            );
            bank_memory #(.W(LANES*M_W), .DEPTH(MULTIPLIERS), .FILE(FILE)) factors (
                .clk, .write, .write_at, .written, .shadow, .bank(next_bank), .at(rst ? '0 : next), .word(multipliers)
            );
        end else begin : none
            assign multipliers = '0;
            assign update_law = update;
            logic unused_factors;
            assign unused_factors = &{1'b0, multipliers};
        end
`else
        if (MULTIPLIERS > 1) begin : by_channel
            localparam int AW = $clog2(MULTIPLIERS);
            logic [LANES*M_W-1:0] words [MULTIPLIERS];
            logic [AW-1:0] at, next;
            initial $readmemh(FILE, words);
            // The word for the next input is read while this one is used.
            assign next = !in_valid ? at : (at == AW'(MULTIPLIERS - 1)) ? '0 : at + 1'b1;
            always_ff @(posedge clk) at <= rst ? '0 : next;
            always_ff @(posedge clk) multipliers <= words[rst ? '0 : next];
        end else if (MULTIPLIERS == 1) begin : constant
            logic [LANES*M_W-1:0] words [1];
            initial $readmemh(FILE, words);
            assign multipliers = words[0];
        end else begin : none
            assign multipliers = '0;
            logic unused_factors;
            assign unused_factors = &{1'b0, multipliers};
        end

`endif
        for (genvar i = 0; i < LANES; i++) begin : lane
            logic signed [ACC_W-1:0] acc;
            logic signed [PROD_W-1:0] product;
            logic signed [WIDE-1:0] whole;
            logic [OUT_W-1:0] result;

            always_ff @(posedge clk) acc <= in_data[i*ACC_W +: ACC_W];

            if (MULTIPLIERS > 0 && ACC_W > SPLIT) begin : split
                localparam int LOW_W = SPLIT + M_W + 2;
                localparam int HIGH_W = ACC_W - SPLIT + M_W + 1;
                logic signed [M_W:0] by;
                logic signed [LOW_W-1:0] low;
                logic signed [HIGH_W-1:0] high;
                always_ff @(posedge clk) begin
                    by <= {1'b0, multipliers[i*M_W +: M_W]};
                    low <= LOW_W'($signed({1'b0, acc[SPLIT-1:0]})) * LOW_W'(by);
                    high <= HIGH_W'($signed(acc[ACC_W-1:SPLIT])) * HIGH_W'(by);
                    product <= (PROD_W'(high) <<< SPLIT) + PROD_W'(low);
                end
            end else if (MULTIPLIERS > 0) begin : single
                logic signed [M_W:0] by;
                logic signed [PROD_W-1:0] early;
                always_ff @(posedge clk) begin
                    by <= {1'b0, multipliers[i*M_W +: M_W]};
                    early <= PROD_W'(acc) * PROD_W'(by);
                    product <= early;
                end
            end else begin : plain
                logic signed [PROD_W-1:0] early;
                always_ff @(posedge clk) begin
                    early <= acc;
                    product <= early;
                end
            end

`ifdef UPDATABLE
            // As below with any shift, in two steps; a product of which nothing is dropped is doubled before.
            logic signed [PROD_W:0] coarse, doubled;
            always_ff @(posedge clk) begin
                coarse <= $signed({product, 1'b0}) >>> {coarse_shift[5:3], 3'b000};
                doubled <= coarse >>> fine_shift[2:0];
                whole <= WIDE'(((PROD_W+2)'(doubled) + (PROD_W+2)'(1)) >>> 1);
                if (whole > WIDE'(top)) result <= highest;
                else if (whole < WIDE'(bottom)) result <= lowest;
                else result <= whole[OUT_W-1:0] + zero;
            end
`else
            // Half a step is added as a one below the point: one adder, and no wider than what is kept.
            if (SHIFT == 0) begin : unshifted
                always_ff @(posedge clk) whole <= WIDE'(product);
            end else begin : shifted
                logic signed [PROD_W-1:0] doubled;
                logic signed [WIDE:0] raised;
                assign doubled = product >>> (SHIFT - 1);
                logic unused_high;  // copies of the sign
                assign unused_high = &{1'b0, doubled};
                assign raised = (WIDE+1)'(doubled) + (WIDE+1)'(1);
                always_ff @(posedge clk) whole <= WIDE'(raised >>> 1);
            end

            always_ff @(posedge clk) begin
                if (whole > WIDE'(HIGH - ZERO)) result <= OUT_W'(HIGH);
                else if (whole < WIDE'(LOW - ZERO)) result <= OUT_W'(LOW);
                else result <= whole[OUT_W-1:0] + OUT_W'(ZERO);
            end
`endif
            assign out_data[i*OUT_W +: OUT_W] = result;
        end
    endgenerate
endmodule
